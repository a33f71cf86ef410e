#include <doctest/doctest.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>

#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/base/host_memory.hpp"
#include "server/confinement/landlock.hpp"
#include "server/worker/confinement.hpp"
#include "test/support/temporary_directory.hpp"

using namespace gpuwire;
using namespace gpuwire::server;
namespace fs = std::filesystem;

namespace {

constexpr int kConfinementFailed = 99;

// How a child ends that confines itself and then does `what`: its exit code, or minus the signal that ended it.
int confined(
    const std::function<int()>& what, const ConfinementRules& rules = {}, const std::function<void()>& before = [] {}) {
  pid_t child = ::fork();
  if (child == 0) {
    before();
    if (!confine_process(rules) || !confine_system_calls(rules)) ::_exit(kConfinementFailed);
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

TEST_CASE(
    "when the tenant is known, every thread of a worker keeps the tenant's folder and loses what it could write "
    "before") {
  if (!kernel_has_landlock()) return;
  gpuwire::test::TemporaryDirectory cache;
  fs::path mine = cache.path() / "mine", others = cache.path() / "others";
  for (const fs::path& folder : {mine, others}) fs::create_directory(folder);
  CHECK(confined(
            [&] {
              std::atomic<int> stage{0}, from_thread{-1};
              // As a driver's: asleep, and with every signal blocked that can be.
              std::thread other([&] {
                sigset_t all;
                ::sigfillset(&all);
                ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
                stage = 1;
                stage.notify_all();
                stage.wait(1);
                from_thread = open_error(others / "file", O_WRONLY | O_CREAT);
              });
              stage.wait(0);
              if (open_error(others / "before", O_WRONLY | O_CREAT) != 0) return 1;
              if (!confine_to_tenant({.write = {cache.path()}}, {mine})) return 2;
              stage = 2;
              stage.notify_all();
              other.join();
              if (from_thread != EACCES) return 3;
              if (open_error(others / "before", O_RDONLY) != EACCES ||
                  open_error(cache.path() / "lock", O_RDWR | O_CREAT) != EACCES)
                return 4;
              if (::rename((others / "before").c_str(), (mine / "taken").c_str()) == 0) return 5;
              if (open_error(mine / "file", O_WRONLY | O_CREAT) != 0) return 6;
              if (open_error("/usr/bin/env", O_RDONLY) != 0) return 7;
              // Threads that come later, too.
              int later = 0;
              std::thread([&] { later = open_error(others / "before", O_RDONLY); }).join();
              return later == EACCES ? 0 : 8;
            },
            {.write = {cache.path()}}) == 0);
}

TEST_CASE("a worker maps no more memory for itself than its session may have") {
  constexpr uint64_t kMiB = 1u << 20;
  CHECK(confined([] {
          bound_own_memory(64 * kMiB);
          auto map = [](uint64_t bytes) {
            return ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) !=
                   MAP_FAILED;
          };
          if (!map(kHostSlackBytes)) return 1;
          if (map(128 * kMiB)) return 2;
          // Address space that is kept free is no memory.
          if (::mmap(nullptr, 1ull << 40, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED)
            return 3;
          rlimit more{RLIM_INFINITY, RLIM_INFINITY};
          return ::setrlimit(RLIMIT_DATA, &more) == 0 ? 4 : 0;
        }) == 0);
}

TEST_CASE("a system call that a worker has no use for ends it") {
  CHECK(confined([] { return ::execl("/bin/true", "true", nullptr); }) == -SIGSYS);
  CHECK(confined([] { return ::fork() == 0 ? 0 : 1; }) == -SIGSYS);
  CHECK(confined([] { return ::socket(AF_INET, SOCK_STREAM, 0) >= 0 ? 0 : 1; }) == -SIGSYS);
  CHECK(confined([] { return int(::syscall(SYS_bpf, 0, nullptr, 0)); }) == -SIGSYS);
  CHECK(confined([] { return ::setuid(0); }) == -SIGSYS);
}

TEST_CASE("only a worker that offers RDMA makes TCP connections, and it has nothing else for it") {
  auto listens = [] {
    int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    return socket >= 0 && ::bind(socket, reinterpret_cast<sockaddr*>(&any), sizeof any) == 0 && ::listen(socket, 1) == 0
               ? 0
               : 1;
  };
  CHECK(confined(listens) == -SIGSYS);
  ConfinementRules rules{.rdma = true};
  CHECK(confined(listens, rules) == 0);
  CHECK(confined([] { return int(::ptrace(PTRACE_ATTACH, ::getppid(), nullptr, nullptr)); }, rules) == -SIGSYS);
  if (kernel_has_landlock()) CHECK(confined([] { return open_error("/etc/passwd", O_RDONLY); }, rules) == EACCES);
}

TEST_CASE("a confined worker cannot signal another process, not even ask whether it is there") {
  CHECK(confined([] { return ::kill(::getppid(), 0); }) == -SIGSYS);
  CHECK(confined([] { return ::kill(::getpid(), 0); }) == 0);
}

TEST_CASE("other processes' limits, priority and processors are out of a confined worker's reach, its parent's too") {
  // Nothing would change: what is asked for is what the parent has.
  const pid_t parent = ::getpid();
  const int priority = ::getpriority(PRIO_PROCESS, 0);
  rlimit files{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
  cpu_set_t processors;
  REQUIRE(::sched_getaffinity(0, sizeof processors, &processors) == 0);
  sched_param usual{};
  auto refused = [](long result) { return result == -1 && errno == EPERM ? 0 : 1; };
  CHECK(confined([&] { return refused(::prlimit(parent, RLIMIT_NOFILE, &files, nullptr)); }) == 0);
  CHECK(confined([&] { return refused(::setpriority(PRIO_PROCESS, id_t(parent), priority)); }) == 0);
  CHECK(confined([&] { return refused(::setpriority(PRIO_USER, ::getuid(), priority)); }) == 0);
  CHECK(confined([&] { return refused(::sched_setaffinity(parent, sizeof processors, &processors)); }) == 0);
  CHECK(confined([&] { return refused(::sched_setscheduler(parent, SCHED_OTHER, &usual)); }) == 0);
  // Its own are its own affair.
  CHECK(confined([&] {
          rlimit own{};
          if (::getrlimit(RLIMIT_NOFILE, &own) != 0 || ::setrlimit(RLIMIT_NOFILE, &own) != 0) return 1;
          if (::sched_setaffinity(0, sizeof processors, &processors) != 0) return 2;
          if (::setpriority(PRIO_PROCESS, 0, priority) != 0) return 3;
          // By its number, too, as the C library names a thread; and the numbers beside it are somebody else's.
          const pid_t self = ::getpid();
          if (::prlimit(self, RLIMIT_NOFILE, &own, nullptr) != 0) return 4;
          if (::sched_setaffinity(self, sizeof processors, &processors) != 0) return 5;
          if (::setpriority(PRIO_PROCESS, id_t(self), priority) != 0) return 6;
          for (unsigned bit = 0; bit < 31; ++bit)
            if (refused(::prlimit(self ^ (1 << bit), RLIMIT_NOFILE, nullptr, nullptr)) != 0) return 7;
          return 0;
        }) == 0);
  // The kernel takes no notice of the upper half of a number.
  CHECK(confined([&] {
          return refused(::syscall(SYS_prlimit64, 1ul << 32 | unsigned(parent), RLIMIT_NOFILE, &files, nullptr));
        }) == 0);
}

TEST_CASE("a confined worker makes no descriptor signal another process, and types into no terminal") {
  const pid_t parent = ::getpid();
  auto refused = [](auto make) {
    return confined([&] {
      int ends[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 1;
      return make(ends[0]) == -1 && errno == EPERM ? 0 : 2;
    });
  };
  CHECK(refused([&](int end) { return ::fcntl(end, F_SETOWN, parent); }) == 0);
  CHECK(refused([&](int end) { return ::fcntl(end, F_SETSIG, SIGKILL); }) == 0);
  CHECK(refused([&](int end) {
          f_owner_ex owner{F_OWNER_PID, parent};
          return ::fcntl(end, F_SETOWN_EX, &owner);
        }) == 0);
  CHECK(refused([&](int end) { return ::ioctl(end, FIOSETOWN, &parent); }) == 0);
  CHECK(refused([&](int end) { return ::ioctl(end, SIOCSPGRP, &parent); }) == 0);
  CHECK(refused([&](int end) { return ::ioctl(end, TIOCSTI, "x"); }) == 0);
  // The kernel takes no notice of the upper half of a command.
  CHECK(refused([&](int end) { return int(::syscall(SYS_fcntl, end, 1ul << 32 | F_SETOWN, parent)); }) == 0);
  CHECK(refused([&](int end) { return int(::syscall(SYS_ioctl, end, 1ul << 32 | FIOSETOWN, &parent)); }) == 0);
}

TEST_CASE("what a worker leaves with the kernel unread is less than what its broker may send") {
  constexpr rlim_t kBrokers = 128;
  const auto as_the_broker = [] {
    rlimit limit{kBrokers, kBrokers};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  };
  CHECK(confined(
            [] {
              // Descriptors on their way are counted for the user, and each message carries one.
              int ends[2];
              if (::socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) != 0) return 1;
              rlim_t sent = 0;
              for (;; ++sent) {
                char byte = 0;
                iovec piece{&byte, 1};
                alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
                msghdr message{};
                message.msg_iov = &piece;
                message.msg_iovlen = 1;
                message.msg_control = control;
                message.msg_controllen = sizeof control;
                cmsghdr* header = CMSG_FIRSTHDR(&message);
                *header = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
                std::memcpy(CMSG_DATA(header), &ends[0], sizeof(int));
                if (::sendmsg(ends[1], &message, MSG_DONTWAIT) == 1) continue;
                if (errno == ETOOMANYREFS) return sent < kBrokers ? 0 : 2;
                if (errno != EAGAIN) return 3;
                // This pair is full: the next one.
                if (::socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) != 0) return 4;
              }
            },
            {}, as_the_broker) == 0);
}

TEST_CASE("none of root's privileges are left to a confined worker") {
  const int now = ::getpriority(PRIO_PROCESS, 0);
  CHECK(confined([now] {
          // What only CAP_SYS_NICE allows. No process can be preferred further than by -20.
          return now > -20 && ::setpriority(PRIO_PROCESS, 0, now - 1) == 0 ? 1 : 0;
        }) == 0);
}

TEST_CASE("confinement that is off leaves the process as it is") {
  ConfinementRules rules{.level = Confinement::off};
  CHECK(confined([] { return open_error("/etc/passwd", O_RDONLY); }, rules) == 0);
  CHECK(confined([] { return ::fork() >= 0 ? 0 : 1; }, rules) == 0);
}
