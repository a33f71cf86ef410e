#include "server/confinement/system_calls.hpp"

#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>

#include <fmt/format.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/sockios.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gpuwire::server {
namespace {

using Filter = std::unique_ptr<std::remove_pointer_t<scmp_filter_ctx>, void (*)(scmp_filter_ctx)>;

tl::unexpected<std::string> failed(const char* what, int error) {
  return tl::unexpected(fmt::format("seccomp: {}: {}", what, std::strerror(-error)));
}

constexpr const char* kWorkerCalls[] = {
    // Memory: mappings of the driver, of programs' addresses, of files.
    "mmap",
    "munmap",
    "mremap",
    "mprotect",
    "madvise",
    "brk",
    "mlock",
    "mlock2",
    "munlock",
    "mincore",
    "msync",
    "membarrier",
    "memfd_create",
    "mbind",
    "get_mempolicy",
    "set_mempolicy",
    "move_pages",
    "pkey_alloc",
    "pkey_free",
    "pkey_mprotect",
    // Files: the driver opens its device files and the code of its compilers late, the module cache is files. Which
    // files: Landlock's rules.
    "open",
    "openat",
    "openat2",
    "close",
    "close_range",
    "read",
    "pread64",
    "readv",
    "preadv",
    "write",
    "pwrite64",
    "writev",
    "pwritev",
    "lseek",
    "fstat",
    "stat",
    "lstat",
    "newfstatat",
    "statx",
    "statfs",
    "fstatfs",
    "access",
    "faccessat",
    "faccessat2",
    "readlink",
    "readlinkat",
    "getdents64",
    "getdents",
    "getcwd",
    "ftruncate",
    "fallocate",
    "fsync",
    "fdatasync",
    "fadvise64",
    "flock",
    "fcntl",
    "dup",
    "dup2",
    "dup3",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
    "symlink",
    "mkdir",
    "mkdirat",
    "rmdir",
    "fchmod",
    "chmod",
    "fchmodat",
    "umask",
    "utimensat",
    "copy_file_range",
    "sendfile",
    // The driver's own calls. Its numbers are not documented, so arguments cannot be told apart; which devices:
    // Landlock's rules.
    "ioctl",
    // The client's connection and the broker's pair; pairs of sockets for descriptors that programs share. No new
    // connections: no socket, connect, bind, listen.
    "recvfrom",
    "recvmsg",
    "recvmmsg",
    "sendto",
    "sendmsg",
    "sendmmsg",
    "shutdown",
    "getsockopt",
    "setsockopt",
    "getsockname",
    "getpeername",
    "socketpair",
    "poll",
    "ppoll",
    "select",
    "pselect6",
    "epoll_create1",
    "epoll_create",
    "epoll_ctl",
    "epoll_wait",
    "epoll_pwait",
    "epoll_pwait2",
    "eventfd2",
    "eventfd",
    "pipe",
    "pipe2",
    // Threads and time.
    "futex",
    "futex_waitv",
    "set_robust_list",
    "get_robust_list",
    "rseq",
    "set_tid_address",
    "gettid",
    "getpid",
    "getppid",
    "sched_yield",
    "sched_getaffinity",
    "sched_setaffinity",
    "sched_getparam",
    "sched_getscheduler",
    "sched_setscheduler",
    "sched_get_priority_max",
    "sched_get_priority_min",
    "sched_getattr",
    "getcpu",
    "getpriority",
    "setpriority",
    "exit",
    "exit_group",
    "restart_syscall",
    "nanosleep",
    "clock_nanosleep",
    "clock_gettime",
    "clock_getres",
    "gettimeofday",
    "time",
    "times",
    "timerfd_create",
    "timerfd_settime",
    "timerfd_gettime",
    "timer_create",
    "timer_settime",
    "timer_gettime",
    "timer_delete",
    "timer_getoverrun",
    "setitimer",
    "getitimer",
    "alarm",
    // Signals: handlers of the driver and the C library.
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "rt_sigsuspend",
    "rt_sigpending",
    "rt_sigtimedwait",
    "sigaltstack",
    "signalfd4",
    // Facts about the process and the machine, and its own limits (forbid_reaching_others).
    "uname",
    "sysinfo",
    "getrlimit",
    "prlimit64",
    "getrusage",
    "getuid",
    "geteuid",
    "getgid",
    "getegid",
    "getgroups",
    "getresuid",
    "getresgid",
    "getsid",
    "getpgrp",
    "getpgid",
    "capget",
    "prctl",
    "arch_prctl",
    "getrandom",
    // Only ever takes rights away: when the tenant is known, other tenants' files go out of reach.
    "landlock_create_ruleset",
    "landlock_add_rule",
    "landlock_restrict_self",
};

constexpr const char* kRdmaCalls[] = {
    // UCX's TCP connections, and what it asks the kernel about its devices (netlink).
    "socket", "bind", "listen", "accept", "accept4", "connect",
};

}  // namespace

std::span<const char* const> worker_system_calls() { return kWorkerCalls; }
std::span<const char* const> rdma_system_calls() { return kRdmaCalls; }

tl::expected<void, std::string> allow_system_calls(std::span<const char* const> names, Violation violation) {
  Filter filter(seccomp_init(violation == Violation::kill ? SCMP_ACT_KILL_PROCESS : SCMP_ACT_LOG), seccomp_release);
  if (!filter) return tl::unexpected(std::string("seccomp: no memory for a filter"));
  if (int error = seccomp_attr_set(filter.get(), SCMP_FLTATR_CTL_TSYNC, 1)) return failed("threads", error);
  // Common calls first: the kernel goes through the filter for each call.
  if (int error = seccomp_attr_set(filter.get(), SCMP_FLTATR_CTL_OPTIMIZE, 2)) return failed("search tree", error);
  auto allow = [&](const char* name, auto... arguments) -> int {
    int number = seccomp_syscall_resolve_name(name);
    if (number == __NR_SCMP_ERROR) return 0;
    return seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, number, sizeof...(arguments), arguments...);
  };
  for (const char* name : names) {
    if (int error = allow(name)) return failed(name, error);
  }
  // Signals to itself only.
  auto self = static_cast<scmp_datum_t>(::getpid());
  for (const char* name : {"kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"}) {
    if (int error = allow(name, SCMP_A0(SCMP_CMP_EQ, self))) return failed(name, error);
  }
  // Threads, not processes. clone3 hides its flags from filters; told that it does not exist, the C library uses clone.
  if (int error = allow("clone", SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, CLONE_THREAD)))
    return failed("clone", error);
  if (int error = seccomp_rule_add(filter.get(), SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0))
    return failed("clone3", error);
  if (int error = seccomp_load(filter.get())) return failed("load", error);
  return {};
}

// The kernel lets a process do these to every other one of its user, and all workers and their broker are one user's.
// Which process, and which command, the kernel takes from the lower 32 bits, so only those are compared here.
tl::expected<void, std::string> forbid_reaching_others(Violation violation) {
  Filter filter(seccomp_init(SCMP_ACT_ALLOW), seccomp_release);
  if (!filter) return tl::unexpected(std::string("seccomp: no memory for a filter"));
  if (int error = seccomp_attr_set(filter.get(), SCMP_FLTATR_CTL_TSYNC, 1)) return failed("threads", error);
  // Not its end: the C library names a thread by its number, which cannot be told from another process's, and whoever
  // calls does without.
  const uint32_t refused = violation == Violation::kill ? uint32_t(SCMP_ACT_ERRNO(EPERM)) : SCMP_ACT_LOG;
  int error = 0;
  auto forbid = [&](int number, scmp_arg_cmp when) {
    if (error == 0) error = seccomp_rule_add(filter.get(), refused, number, 1, when);
  };
  constexpr scmp_datum_t kWord = 0xffff'ffff;
  // A rule compares an argument once. What is neither zero nor `self` has a bit that `self` has not, or, of two bits of
  // `self` that follow each other in a ring, one without the other.
  const auto self = static_cast<scmp_datum_t>(::getpid());
  auto forbid_others = [&](int number, unsigned argument) {
    scmp_datum_t last = std::bit_floor(self);
    for (unsigned i = 0; i < 32; ++i) {
      const scmp_datum_t bit = scmp_datum_t{1} << i;
      if ((self & bit) == 0) {
        forbid(number, SCMP_CMP64(argument, SCMP_CMP_MASKED_EQ, bit, bit));
      } else {
        if (bit != last) forbid(number, SCMP_CMP64(argument, SCMP_CMP_MASKED_EQ, bit | last, bit));
        last = bit;
      }
    }
  };
  // Limits, memory, priority, processors.
  for (int number : {SCMP_SYS(prlimit64), SCMP_SYS(move_pages), SCMP_SYS(sched_setaffinity),
                     SCMP_SYS(sched_setscheduler), SCMP_SYS(sched_setparam)})
    forbid_others(number, 0);
  forbid(SCMP_SYS(setpriority), SCMP_A0(SCMP_CMP_NE, PRIO_PROCESS));
  forbid_others(SCMP_SYS(setpriority), 1);
  // Signals to whoever is called the owner of a descriptor, whichever signal.
  for (int command : {F_SETOWN, F_SETOWN_EX, F_SETSIG})
    forbid(SCMP_SYS(fcntl), SCMP_A1(SCMP_CMP_MASKED_EQ, kWord, scmp_datum_t(command)));
  // The same by another door; and words that a terminal, which standard error may be, takes as if they had been typed.
  for (unsigned command : {unsigned(FIOSETOWN), unsigned(SIOCSPGRP), unsigned(TIOCSTI), unsigned(TIOCLINUX)})
    forbid(SCMP_SYS(ioctl), SCMP_A1(SCMP_CMP_MASKED_EQ, kWord, scmp_datum_t(command)));
  if (error != 0) return failed("others", error);
  if (int loaded = seccomp_load(filter.get())) return failed("load", loaded);
  return {};
}

void drop_capabilities() {
  for (int capability = 0; capability <= CAP_LAST_CAP; ++capability) ::prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  ::syscall(SYS_capset, &header, none);
}

}  // namespace gpuwire::server
