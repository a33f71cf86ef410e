#include "server/confinement/process_rights.hpp"

#include <algorithm>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>

namespace gpuwire::server {
namespace {

// The calls for memory, the process's sockets and timer, random numbers and the clock, and for receiving descriptors
// from the broker. No call opens, connects or executes. The list includes internal calls of newer C libraries
// (getrandom counts processors).
constexpr const char* kLoginCalls[] = {
    "mmap",
    "munmap",
    "mremap",
    "madvise",
    "brk",
    "read",
    "write",
    "readv",
    "writev",
    "pread64",
    "close",
    "fcntl",
    "ioctl",
    "fstat",
    "newfstatat",
    "lseek",
    "recvfrom",
    "recvmsg",
    "sendmsg",
    "shutdown",
    "getsockopt",
    "setsockopt",
    "epoll_ctl",
    "epoll_wait",
    "epoll_pwait",
    "timerfd_settime",
    "poll",
    "ppoll",
    "futex",
    "sched_yield",
    "sched_getaffinity",
    "sysinfo",
    "getpid",
    "gettid",
    "getrandom",
    "clock_gettime",
    "gettimeofday",
    "time",
    "rt_sigreturn",
    "rt_sigaction",
    "rt_sigprocmask",
    "sigaltstack",
    "restart_syscall",
    "exit",
    "exit_group",
};

// The additional rights of the web page's process, which accepts connections on the socket from the broker.
constexpr const char* kWebCalls[] = {
    "accept",
    "accept4",
    "getpeername",
    "getsockname",
};

// The web page's TLS process takes the connections, and passes the bytes of each on over a pair.
constexpr const char* kWebTlsCalls[] = {
    "accept", "accept4", "getpeername", "getsockname", "socketpair",
};

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
    // Files: the driver opens its device files and the code of its compilers late, and the module cache consists of
    // files. Landlock's rules define the allowed files.
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
    "chown",  // the driver calls it, and continues after the refusal (forbid_reaching_others)
    "sendfile",
    // The driver's own calls. Its numbers are not documented, so arguments cannot be distinguished; Landlock's rules
    // select the devices.
    "ioctl",
    // The client's connection and the broker's pair; pairs of sockets for descriptors that programs share
    // (forbid_reaching_others). No new connections: no socket, connect, bind, listen. No epoll: the kernel counts all
    // watches of a user together, so a process that takes the last watch leaves none for the broker.
    "recvfrom",
    "recvmsg",
    "recvmmsg",
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
    // These calls only remove rights: when the tenant is known, the worker gives up access to other tenants' files.
    "landlock_create_ruleset",
    "landlock_add_rule",
    "landlock_restrict_self",
};

constexpr const char* kRdmaCalls[] = {
    // UCX's TCP connections, and its queries of the kernel about network devices (netlink).
    "socket",
    "bind",
    "listen",
    "accept",
    "accept4",
    "connect",
    "sendto",
    // The objects that its progress thread and the verbs' event channels wait on.
    "epoll_create1",
    "epoll_create",
    "epoll_ctl",
    "epoll_wait",
    "epoll_pwait",
    "epoll_pwait2",
};

// The additional rights of the suspender. NVIDIA's driver opens the pipes of a worker under /proc/PID/fd, the software
// device a Unix socket. The kernel's Landlock cannot be used: it keeps a process from /proc/PID/fd of every process
// that is not confined by the same rules (driver 580.159.04: CUDA_ERROR_OPERATING_SYSTEM). So no call of this list
// makes, removes, renames or shortens a file.
constexpr const char* kSuspenderCalls[] = {
    "getdents64",
    "lstat",
    "stat",
    "statx",
    "access",
    "faccessat",
    "faccessat2",
    "readlink",
    "readlinkat",
    "dup",
    "pipe2",
    "eventfd2",
    "connect",
    "socketpair",
    "epoll_create1",
    "recvmmsg",
    // Threads of the driver.
    "mprotect",
    "membarrier",
    "rseq",
    "set_robust_list",
    "set_tid_address",
    "sched_setaffinity",
    "sched_getparam",
    "sched_getscheduler",
    "sched_get_priority_max",
    "sched_get_priority_min",
    "nanosleep",
    "clock_nanosleep",
    "prctl",
    "getppid",
    "getuid",
    "geteuid",
    "getgid",
    "getegid",
    "uname",
};

constexpr uint64_t kWholeArgument = ~uint64_t{0};

// A message may have no address, so it goes to the socket's peer: an address in sendto could name any socket of the
// machine, such as the journal's or the system log's.
constexpr ArgumentRule kSendingRules[] = {{"sendto", 4, kWholeArgument, 0}};

// The suspender's sockets are Unix sockets, and it opens only files that exist, and does not empty them.
constexpr uint64_t kMakingOrEmptying = O_CREAT | O_TRUNC | (O_TMPFILE & ~O_DIRECTORY);
constexpr ArgumentRule kSuspenderRules[] = {{"sendto", 4, kWholeArgument, 0},
                                            {"socket", 0, kWholeArgument, AF_UNIX},
                                            {"open", 1, kMakingOrEmptying, 0},
                                            {"openat", 2, kMakingOrEmptying, 0}};

constexpr const char *kWorkerUser = "the server's, without capabilities; with `worker_users` a real user of its own",
                     *kWorkerFiles =
                         "libraries and the driver's files, what the machine says of itself; its tenant's "
                         "images and compiled code, for writing",
                     *kWorkerLimits =
                         "data by the tenant's `host_memory`; the size of a file; descriptors, timers and "
                         "signals that wait, of its user; no core file";

const ProcessRights kRights[] = {
    {.kind = ProcessKind::login,
     .name = "login process",
     .user = "nobody, without capabilities",
     .files = "none",
     .sockets = "those that the broker hands it",
     .limits = "no core file",
     .calls = kLoginCalls,
     .more_calls = {},
     .rules = kSendingRules},
    {.kind = ProcessKind::web,
     .name = "web page",
     .user = "nobody, without capabilities",
     .files = "none",
     .sockets = "the one where the page is, which the broker hands it, and its visitors'",
     .limits = "no core file",
     .calls = kLoginCalls,
     .more_calls = kWebCalls,
     .rules = kSendingRules},
    {.kind = ProcessKind::web_tls,
     .name = "web page's TLS",
     .user = "nobody, without capabilities",
     .files = "none",
     .sockets =
         "the one where the page is, which the broker hands it, and its visitors'; pairs, connected to each other",
     .limits = "no core file",
     .calls = kLoginCalls,
     .more_calls = kWebTlsCalls,
     .rules = kSendingRules},
    {.kind = ProcessKind::worker,
     .name = "worker",
     .user = kWorkerUser,
     .files = kWorkerFiles,
     .sockets = "its client's and the broker's; pairs, connected to each other",
     .limits = kWorkerLimits,
     .calls = kWorkerCalls,
     .more_calls = {},
     .rules = kSendingRules},
    {.kind = ProcessKind::rdma_worker,
     .name = "worker that offers RDMA",
     .user = kWorkerUser,
     .files = kWorkerFiles,
     .sockets = "the same, and TCP and netlink of its own",
     .limits = kWorkerLimits,
     .calls = kWorkerCalls,
     .more_calls = kRdmaCalls,
     .rules = kSendingRules},
    {.kind = ProcessKind::suspender,
     .name = "suspender",
     .user = "the server's, without capabilities; with `worker_users` root's, with them",
     .files = "those of its user, but it makes, renames, empties and removes none",
     .sockets = "the broker's; Unix sockets, by which the software device reaches the workers' processes",
     .limits = "no core file",
     .calls = kLoginCalls,
     .more_calls = kSuspenderCalls,
     .rules = kSuspenderRules},
};

}  // namespace

std::span<const ProcessRights> process_rights() { return kRights; }

const ProcessRights& rights_of(ProcessKind kind) {
  return *std::ranges::find(kRights, kind, [](const ProcessRights& rights) { return rights.kind; });
}

tl::expected<void, std::string> confine_system_calls(ProcessKind kind, Violation violation) {
  const ProcessRights& rights = rights_of(kind);
  std::vector<const char*> calls(rights.calls.begin(), rights.calls.end());
  calls.insert(calls.end(), rights.more_calls.begin(), rights.more_calls.end());
  if (auto kept = forbid_reaching_others(violation); !kept) return kept;
  return allow_system_calls(calls, violation, rights.rules);
}

std::string rights_table() {
  std::string table = "| process | user | files | sockets | limits | system calls |\n|---|---|---|---|---|---|\n";
  for (const ProcessRights& rights : kRights)
    table += fmt::format("| {} | {} | {} | {} | {} | {} |\n", rights.name, rights.user, rights.files, rights.sockets,
                         rights.limits, rights.calls.size() + rights.more_calls.size());
  return table;
}

}  // namespace gpuwire::server
