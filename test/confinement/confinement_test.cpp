#include <doctest/doctest.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/base/host_memory.hpp"
#include "server/confinement/landlock.hpp"
#include "server/confinement/process_rights.hpp"
#include "server/ipc/channel.hpp"
#include "server/worker/confinement.hpp"
#include "test/support/temporary_directory.hpp"

using namespace gpuwire;
using namespace gpuwire::server;
namespace fs = std::filesystem;

namespace {

constexpr int kConfinementFailed = 99;

// Returns the end of a child that confines itself and then runs `what`: its exit code, or minus the signal that ended
// it.
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

// Returns errno of opening a file; 0: it opened.
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

TEST_CASE("a process of each kind is ended by every system call that its table does not have") {
  // Without calls that the filter allows only with some arguments, which have their own tests.
  const std::set<std::string> with_arguments{"kill",  "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo",
                                             "clone", "clone3"};
  constexpr int kLastNumber = 470;
  for (const ProcessRights& rights : process_rights()) {
    CAPTURE(rights.name);
    std::set<std::string> has = with_arguments;
    has.insert(rights.calls.begin(), rights.calls.end());
    has.insert(rights.more_calls.begin(), rights.more_calls.end());
    for (const ArgumentRule& rule : rights.rules) has.insert(rule.name);
    int tried = 0;
    for (int number = 0; number <= kLastNumber; ++number) {
      const std::unique_ptr<char, void (*)(void*)> name(::seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, number),
                                                        &::free);
      if (!name || has.contains(name.get())) continue;
      pid_t child = ::fork();
      if (child == 0) {
        rlimit none{0, 0};
        ::setrlimit(RLIMIT_CORE, &none);
        ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (!confine_system_calls(rights.kind, Violation::kill)) ::_exit(kConfinementFailed);
        ::syscall(number, 0, 0, 0, 0, 0, 0);
        ::_exit(0);
      }
      int status = 0;
      ::waitpid(child, &status, 0);
      CHECK_MESSAGE(WIFSIGNALED(status), name.get());
      CHECK_MESSAGE(WTERMSIG(status) == SIGSYS, name.get());
      ++tried;
    }
    CHECK(tried > 100);
  }
}

TEST_CASE("the page about security has the table of what each kind of process may do") {
  std::ifstream file(GPUWIRE_SECURITY_PAGE);
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  CHECK_MESSAGE(page.find(rights_table()) != std::string::npos, "it should be:\n" << rights_table());
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
              // Like a driver's thread: asleep, and with all possible signals blocked.
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
          // Reserved address space is no memory.
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
  // The call would change nothing, because it requests the parent's present values.
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
  // A process may change its own values.
  CHECK(confined([&] {
          rlimit own{};
          if (::getrlimit(RLIMIT_NOFILE, &own) != 0 || ::setrlimit(RLIMIT_NOFILE, &own) != 0) return 1;
          if (::sched_setaffinity(0, sizeof processors, &processors) != 0) return 2;
          if (::setpriority(PRIO_PROCESS, 0, priority) != 0) return 3;
          // Also by its number, as the C library names a thread; neighbouring numbers belong to other processes.
          const pid_t self = ::getpid();
          if (::prlimit(self, RLIMIT_NOFILE, &own, nullptr) != 0) return 4;
          if (::sched_setaffinity(self, sizeof processors, &processors) != 0) return 5;
          if (::setpriority(PRIO_PROCESS, id_t(self), priority) != 0) return 6;
          for (unsigned bit = 0; bit < 31; ++bit)
            if (refused(::prlimit(self ^ (1 << bit), RLIMIT_NOFILE, nullptr, nullptr)) != 0) return 7;
          return 0;
        }) == 0);
  // The kernel ignores the upper half of a number.
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
  // The kernel ignores the upper half of a command.
  CHECK(refused([&](int end) { return int(::syscall(SYS_fcntl, end, 1ul << 32 | F_SETOWN, parent)); }) == 0);
  CHECK(refused([&](int end) { return int(::syscall(SYS_ioctl, end, 1ul << 32 | FIOSETOWN, &parent)); }) == 0);
}

TEST_CASE("a confined worker sends nothing to an address: no journal, no system log, no socket of another process") {
  const std::string address = "gpuwire-confinement-test-" + std::to_string(::getpid());
  sockaddr_un where{.sun_family = AF_UNIX, .sun_path = {}};
  std::copy(address.begin(), address.end(), where.sun_path + 1);  // an abstract one
  const auto bytes = socklen_t(offsetof(sockaddr_un, sun_path) + 1 + address.size());
  const int journal = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  REQUIRE(::bind(journal, reinterpret_cast<const sockaddr*>(&where), bytes) == 0);
  int datagrams[2], stream[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_DGRAM, 0, datagrams) == 0);
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, stream) == 0);
  auto keeps = [](int descriptor) { return ::dup2(descriptor, ipc::kDescriptor) == ipc::kDescriptor; };
  CHECK(confined([] {
          int ends[2];
          for (int type : {int(SOCK_DGRAM), int(SOCK_RAW)})
            for (int flags : {0, SOCK_CLOEXEC | SOCK_NONBLOCK})
              if (::socketpair(AF_UNIX, type | flags, 0, ends) == 0 || errno != EPERM) return 1;
          return 0;
        }) == 0);
  // A socket that another process has passed to it.
  CHECK(confined(
            [&] {
              return ::sendto(ipc::kDescriptor, "x", 1, 0, reinterpret_cast<const sockaddr*>(&where), bytes) == 1 ? 0
                                                                                                                  : 1;
            },
            {}, [&] { keeps(datagrams[0]); }) == -SIGSYS);
  char byte = 0;
  CHECK(::recv(journal, &byte, 1, 0) < 0);
  // It may use its own pairs and connections.
  CHECK(confined(
            [] {
              int ends[2];
              if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return 1;
              if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) return 2;
              return ::send(ipc::kDescriptor, "x", 1, MSG_NOSIGNAL) == 1 ? 0 : 3;
            },
            {}, [&] { keeps(stream[0]); }) == 0);
  for (int descriptor : {journal, datagrams[0], datagrams[1], stream[0], stream[1]}) ::close(descriptor);
}

TEST_CASE("a confined worker takes none of the watches that its user's processes share") {
  CHECK(confined([] { return ::epoll_create1(EPOLL_CLOEXEC) >= 0 ? 0 : 1; }) == -SIGSYS);
  // The worker cannot use an epoll descriptor that was passed to it, either.
  const int poll = ::epoll_create1(EPOLL_CLOEXEC);
  CHECK(confined(
            [] {
              int ends[2];
              epoll_event event{.events = EPOLLIN, .data = {}};
              return ::pipe(ends) == 0 ? ::epoll_ctl(ipc::kDescriptor, EPOLL_CTL_ADD, ends[0], &event) : 1;
            },
            {}, [&] { ::dup2(poll, ipc::kDescriptor); }) == -SIGSYS);
  ::close(poll);
  ConfinementRules rules{.rdma = true};  // UCX waits by them
  CHECK(confined([] { return ::epoll_create1(EPOLL_CLOEXEC) >= 0 ? 0 : 1; }, rules) == 0);
}

TEST_CASE("a confined worker changes no file's mode or owner, not even of a file that it may read or has made") {
  gpuwire::test::TemporaryDirectory folder;
  const std::string other = "/usr/bin/env", own = (folder.path() / "file").string();
  struct stat facts {};
  REQUIRE(::stat(other.c_str(), &facts) == 0);
  auto refused = [](long result) { return result == -1 && errno == EPERM; };
  CHECK(confined(
            [&] {
              if (!refused(::chmod(other.c_str(), facts.st_mode & 07777))) return 1;
              if (!refused(::fchmodat(AT_FDCWD, other.c_str(), facts.st_mode & 07777, 0))) return 2;
              if (!refused(::chown(other.c_str(), facts.st_uid, facts.st_gid))) return 3;
              int file = ::open(own.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
              return file >= 0 && refused(::fchmod(file, 0600)) ? 0 : 4;
            },
            {.write = {folder.path()}}) == 0);
}

TEST_CASE("a confined worker makes nobody wait who closes a socket of its") {
  CHECK(confined([] {
          int ends[2];
          if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 1;
          const linger long_time{1, 15};
          if (::setsockopt(ends[0], SOL_SOCKET, SO_LINGER, &long_time, sizeof long_time) == 0 || errno != EPERM)
            return 2;
          // The kernel ignores the upper halves.
          if (::syscall(SYS_setsockopt, ends[0], 1ul << 32 | SOL_SOCKET, 1ul << 32 | SO_LINGER, &long_time,
                        sizeof long_time) == 0 ||
              errno != EPERM)
            return 3;
          const int size = 4096;
          return ::setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size) == 0 ? 0 : 4;
        }) == 0);
}

TEST_CASE("no file that a worker writes grows beyond its bound, and none has room that its size does not show") {
  gpuwire::test::TemporaryDirectory folder;
  const std::string path = (folder.path() / "file").string();
  CHECK(confined(
            [&] {
              bound_own_files(0);
              int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
              if (file < 0) return 1;
              if (::ftruncate(file, off_t(kWorkerFileBytes)) != 0) return 2;
              if (::ftruncate(file, off_t(kWorkerFileBytes + 1)) == 0 || errno != EFBIG) return 3;
              if (::pwrite(file, "x", 1, off_t(kWorkerFileBytes)) == 1 || errno != EFBIG) return 4;
              if (::fallocate(file, FALLOC_FL_KEEP_SIZE, 0, 4096) == 0 || errno != EPERM) return 5;
              rlimit more{RLIM_INFINITY, RLIM_INFINITY};
              return ::setrlimit(RLIMIT_FSIZE, &more) == 0 ? 6 : 0;
            },
            {.write = {folder.path()}}) == 0);
}

TEST_CASE("a worker's timers and signals leave room for those of its user's other processes") {
  CHECK(confined([] {
          rlimit bound{};
          if (::getrlimit(RLIMIT_SIGPENDING, &bound) != 0 || bound.rlim_max > 1024) return 1;
          sigevent quiet{};
          quiet.sigev_notify = SIGEV_NONE;
          for (unsigned made = 0;; ++made) {
            timer_t timer;
            if (::timer_create(CLOCK_MONOTONIC, &quiet, &timer) != 0) return made <= 1024 ? 0 : 2;
            if (made > 1024) return 3;
          }
        }) == 0);
}

TEST_CASE("a worker can leave fewer descriptors in transit in the kernel than its broker may send") {
  constexpr rlim_t kBrokers = 128;
  const auto as_the_broker = [] {
    rlimit limit{kBrokers, kBrokers};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  };
  CHECK(confined(
            [] {
              // The kernel counts descriptors in transit per user, and each message carries one.
              int ends[2];
              if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) return 1;
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
                // This pair is full; use the next one.
                if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) return 4;
              }
            },
            {}, as_the_broker) == 0);
}

TEST_CASE("none of root's privileges are left to a confined worker") {
  const int now = ::getpriority(PRIO_PROCESS, 0);
  CHECK(confined([now] {
          // A priority that only CAP_SYS_NICE allows; -20 is the highest.
          return now > -20 && ::setpriority(PRIO_PROCESS, 0, now - 1) == 0 ? 1 : 0;
        }) == 0);
}

TEST_CASE("confinement that is off leaves the process as it is") {
  ConfinementRules rules{.level = Confinement::off};
  CHECK(confined([] { return open_error("/etc/passwd", O_RDONLY); }, rules) == 0);
  CHECK(confined([] { return ::fork() >= 0 ? 0 : 1; }, rules) == 0);
}
