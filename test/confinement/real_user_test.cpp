// Tests separate real users of workers. Only root, or a user with CAP_SETUID, can run the cases; for others they pass
// without a test.
#include <doctest/doctest.h>

#include <cerrno>
#include <csignal>
#include <ctime>
#include <functional>

#include <linux/capability.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/confinement/real_user.hpp"
#include "server/ipc/channel.hpp"
#include "server/worker/confinement.hpp"

using namespace gpuwire::server;

namespace {

constexpr uid_t kOne = 1'600'000'001, kOther = 1'600'000'002, kService = 1'600'000'003, kAsItIs = ~uid_t{0};

int status_of(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

pid_t start(const std::function<int()>& what) {
  pid_t child = ::fork();
  if (child == 0) ::_exit(what());
  return child;
}

// Runs `what` in a worker with this real user.
pid_t start_worker(uid_t user, int broker, const std::function<int()>& what) {
  return start([&] {
    ::dup2(broker, ipc::kDescriptor);
    ConfinementRules rules{.real_user = user};
    if (!confine_process(rules) || !confine_system_calls(rules)) return 99;
    return what();
  });
}

bool make_timer() {
  sigevent quiet{};
  quiet.sigev_notify = SIGEV_NONE;
  timer_t timer;
  return ::timer_create(CLOCK_MONOTONIC, &quiet, &timer) == 0;
}

// Like the packaged service with CAP_SETUID: not root, and with this capability.
void become_service() {
  ::prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0);
  if (::setresuid(kService, kService, kService) != 0) ::_exit(90);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct words[2] = {};
  words[0].permitted = words[0].effective = words[0].inheritable = 1u << CAP_SETUID;
  if (::syscall(SYS_capset, &header, words) != 0) ::_exit(91);
}

bool refused(long result) { return result == -1 && errno == EPERM; }

}  // namespace

TEST_CASE("a worker with a real user of its own uses up the kernel's counts for itself alone") {
  if (!may_give_users()) return;
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const pid_t greedy = start_worker(kOne, ends[1], [] {
    unsigned made = 0;
    while (make_timer()) ++made;
    char byte = 0;
    if (made == 0 || ::write(ipc::kDescriptor, "x", 1) != 1) return 1;
    return ::read(ipc::kDescriptor, &byte, 1) == 1 ? 0 : 2;  // until the others have tried
  });
  char byte = 0;
  REQUIRE(::read(ends[0], &byte, 1) == 1);
  auto makes_one = [] { return make_timer() ? 0 : errno == EAGAIN ? 1 : 2; };
  CHECK(status_of(start_worker(kOther, ends[1], makes_one)) == 0);
  CHECK(status_of(start_worker(kOne, ends[1], makes_one)) == 1);
  CHECK(::write(ends[0], "x", 1) == 1);
  CHECK(status_of(greedy) == 0);
  for (int end : ends) ::close(end);
}

TEST_CASE("a worker's real user is its own, its effective one the server's, and it can go back to neither's rights") {
  if (!may_give_users()) return;
  const uid_t server = ::geteuid();
  CHECK(status_of(start_worker(kOne, 2, [&] {
          uid_t real, effective, saved;
          if (::getresuid(&real, &effective, &saved) != 0) return 1;
          if (real != kOne || effective != server || saved != server) return 2;
          const int now = ::getpriority(PRIO_PROCESS, 0);
          return now > -20 && ::setpriority(PRIO_PROCESS, 0, now - 1) == 0 ? 3 : 0;  // CAP_SYS_NICE
        })) == 0);
  CHECK(status_of(start_worker(kOne, 2, [&] { return ::setresuid(server, kAsItIs, kAsItIs); })) == -SIGSYS);
}

TEST_CASE("the kernel lets no worker change the limits of another one, whatever its filters say") {
  if (!may_give_users()) return;
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  auto without_filters = [&](uid_t user, const std::function<int()>& what) {
    return start([&] {
      become_service();
      if (!take_real_user(user)) return 92;
      __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
      __user_cap_data_struct none[2] = {};
      if (::syscall(SYS_capset, &header, none) != 0) return 93;
      return what();
    });
  };
  const pid_t other = without_filters(kOther, [&] {
    char byte = 0;
    return ::write(ends[1], "x", 1) == 1 && ::read(ends[1], &byte, 1) == 1 ? 0 : 1;
  });
  char byte = 0;
  REQUIRE(::read(ends[0], &byte, 1) == 1);
  const rlimit none{0, 0};
  CHECK(status_of(without_filters(
            kOne, [&] { return refused(::prlimit(other, RLIMIT_NOFILE, &none, nullptr)) ? 0 : 1; })) == 0);
  CHECK(::write(ends[0], "x", 1) == 1);
  CHECK(status_of(other) == 0);
  for (int end : ends) ::close(end);
}

TEST_CASE("a server that gives workers users becomes no other user itself, root least of all, and cannot by a child") {
  if (!may_give_users()) return;
  CHECK(status_of(start([] {
          become_service();
          if (!may_give_users() || !give_real_users_only()) return 1;
          // The right is not effective; and when it is, only the real user may be changed, and not to root.
          if (!refused(::syscall(SYS_setresuid, kOne, kAsItIs, kAsItIs))) return 2;
          __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
          __user_cap_data_struct words[2] = {};
          words[0].permitted = words[0].effective = words[0].inheritable = 1u << CAP_SETUID;
          if (::syscall(SYS_capset, &header, words) != 0) return 3;
          if (!refused(::syscall(SYS_setuid, 0)) || !refused(::syscall(SYS_setreuid, 0, 0))) return 4;
          if (!refused(::syscall(SYS_setfsuid, 0))) return 5;
          if (!refused(::syscall(SYS_setresuid, kAsItIs, 0, kAsItIs))) return 6;
          if (!refused(::syscall(SYS_setresuid, kAsItIs, kAsItIs, 0))) return 7;
          if (!refused(::syscall(SYS_setresuid, 0, kAsItIs, kAsItIs))) return 8;
          // The kernel ignores the upper half of a number.
          if (!refused(::syscall(SYS_setresuid, 1ul << 32, kAsItIs, kAsItIs))) return 9;
          if (!refused(::unshare(CLONE_NEWUSER))) return 10;
          return ::syscall(SYS_setresuid, kOne, kAsItIs, kAsItIs) == 0 ? 0 : 11;
        })) == 0);
}

TEST_CASE("only a program that is to have a user of its own is started with the right to take one") {
  if (!may_give_users()) return;
  // Returns grep's exit code: whether the started program has the right.
  auto has_right = [] {
    const pid_t child = ::fork();
    if (child == 0) {
      ::execl("/bin/grep", "grep", "-qE", "^CapEff:\\s*0*80$", "/proc/self/status", nullptr);
      ::_exit(94);
    }
    return status_of(child) == 0;
  };
  CHECK(status_of(start([&] {
          become_service();
          if (!give_real_users_only()) return 1;
          if (has_right()) return 2;
          {
            const PassOnUserRight right;
            if (!has_right()) return 3;
          }
          return has_right() ? 4 : 0;
        })) == 0);
}
