#include <doctest/doctest.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/confinement/landlock.hpp"
#include "server/worker/confinement.hpp"
#include "test/support/temporary_directory.hpp"

using namespace gpuwire;
using namespace gpuwire::server;

namespace {

constexpr int kConfinementFailed = 99;

// How a child ends that confines itself and then does `what`: its exit code, or minus the signal that ended it.
int confined(const std::function<int()>& what, const ConfinementRules& rules = {}) {
  pid_t child = ::fork();
  if (child == 0) {
    if (!confine_process(rules) || !confine_system_calls(rules.level)) ::_exit(kConfinementFailed);
    ::_exit(what());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

// errno of opening, 0 when it opens.
int open_error(const std::string& path, int flags) {
  int descriptor = ::open(path.c_str(), flags, 0600);
  return descriptor >= 0 ? 0 : errno;
}

bool kernel_has_landlock() { return ::syscall(SYS_landlock_create_ruleset, nullptr, 0, 1) > 0; }

}  // namespace

TEST_CASE("a confined worker computes, maps memory, starts threads and raises signals in itself") {
  CHECK(confined([] {
          void* memory = ::mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
          if (memory == MAP_FAILED) return 1;
          int from_thread = 0;
          std::thread([&] { from_thread = 7; }).join();
          if (from_thread != 7) return 2;
          static volatile sig_atomic_t handled = 0;
          std::signal(SIGUSR1, [](int) { handled = 1; });
          std::raise(SIGUSR1);
          return handled ? 0 : 3;
        }) == 0);
}

TEST_CASE("a confined worker reads libraries and what the machine says about itself, and no other file") {
  if (!kernel_has_landlock()) return;
  CHECK(confined([] { return open_error("/usr/bin/env", O_RDONLY); }) == 0);
  CHECK(confined([] { return open_error("/proc/self/maps", O_RDONLY); }) == 0);
  CHECK(confined([] { return open_error("/etc/passwd", O_RDONLY); }) == EACCES);
  CHECK(confined([] { return open_error("/proc/1/environ", O_RDONLY); }) == EACCES);
  CHECK(confined([] { return open_error("/usr/gpuwire-test-file", O_WRONLY | O_CREAT); }) == EACCES);
}

TEST_CASE("another process's memory is out of a confined worker's reach, its parent's too") {
  if (!kernel_has_landlock()) return;
  std::string parent = "/proc/" + std::to_string(::getpid()) + "/mem";
  CHECK(confined([&] { return open_error(parent, O_RDWR); }) == EACCES);
  CHECK(confined([] { return int(::ptrace(PTRACE_ATTACH, ::getppid(), nullptr, nullptr)); }) == -SIGSYS);
}

TEST_CASE("a confined worker writes in the folders of its rules only") {
  if (!kernel_has_landlock()) return;
  gpuwire::test::TemporaryDirectory mine, other;
  ConfinementRules rules{.write = {mine.path()}};
  std::string inside = (mine.path() / "file").string(), outside = (other.path() / "file").string();
  CHECK(confined([&] { return open_error(inside, O_WRONLY | O_CREAT); }, rules) == 0);
  CHECK(confined([&] { return open_error(outside, O_WRONLY | O_CREAT); }, rules) == EACCES);
}

TEST_CASE("a system call that a worker has no use for ends it") {
  CHECK(confined([] { return ::execl("/bin/true", "true", nullptr); }) == -SIGSYS);
  CHECK(confined([] { return ::fork() == 0 ? 0 : 1; }) == -SIGSYS);
  CHECK(confined([] { return ::socket(AF_INET, SOCK_STREAM, 0) >= 0 ? 0 : 1; }) == -SIGSYS);
  CHECK(confined([] { return int(::syscall(SYS_bpf, 0, nullptr, 0)); }) == -SIGSYS);
  CHECK(confined([] { return ::setuid(0); }) == -SIGSYS);
}

TEST_CASE("a confined worker cannot signal another process, not even ask whether it is there") {
  CHECK(confined([] { return ::kill(::getppid(), 0); }) == -SIGSYS);
  CHECK(confined([] { return ::kill(::getpid(), 0); }) == 0);
}

TEST_CASE("none of root's privileges are left to a confined worker") {
  CHECK(confined([] {
          // What only CAP_SYS_NICE allows.
          return ::setpriority(PRIO_PROCESS, 0, -5) == 0 ? 1 : 0;
        }) == 0);
}

TEST_CASE("confinement that is off leaves the process as it is") {
  ConfinementRules rules{.level = Confinement::off};
  CHECK(confined([] { return open_error("/etc/passwd", O_RDONLY); }, rules) == 0);
  CHECK(confined([] { return ::fork() >= 0 ? 0 : 1; }, rules) == 0);
}
