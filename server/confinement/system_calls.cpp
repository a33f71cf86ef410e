#include "server/confinement/system_calls.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

#include <fmt/format.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/sockios.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gpuwire::server {
namespace {

using Filter = std::unique_ptr<std::remove_pointer_t<scmp_filter_ctx>, void (*)(scmp_filter_ctx)>;

tl::unexpected<std::string> failed(const char* what, int error) {
  return tl::unexpected(fmt::format("seccomp: {}: {}", what, std::strerror(-error)));
}

}  // namespace

tl::expected<void, std::string> allow_system_calls(std::span<const char* const> names, Violation violation,
                                                   std::span<const ArgumentRule> rules) {
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
  for (const ArgumentRule& rule : rules) {
    const bool unconditional = std::ranges::any_of(names, [&](std::string_view name) { return name == rule.name; });
    if (unconditional) continue;
    const scmp_arg_cmp holds = SCMP_CMP64(rule.argument, SCMP_CMP_MASKED_EQ, rule.mask, rule.value);
    if (int error = allow(rule.name, holds)) return failed(rule.name, error);
  }
  // Signals to itself only.
  auto self = static_cast<scmp_datum_t>(::getpid());
  for (const char* name : {"kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"}) {
    if (int error = allow(name, SCMP_A0(SCMP_CMP_EQ, self))) return failed(name, error);
  }
  // Allows threads, but no processes. clone3 hides its flags from filters; if the kernel reports the call as missing,
  // the C library uses clone.
  if (int error = allow("clone", SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, CLONE_THREAD)))
    return failed("clone", error);
  if (int error = seccomp_rule_add(filter.get(), SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0))
    return failed("clone3", error);
  if (int error = seccomp_load(filter.get())) return failed("load", error);
  return {};
}

// The kernel allows a process these actions on every other process of its user, and all workers and their broker have
// the same user. The kernel reads process numbers and commands from the lower 32 bits, so the rules compare only these
// bits.
tl::expected<void, std::string> forbid_reaching_others(Violation violation) {
  Filter filter(seccomp_init(SCMP_ACT_ALLOW), seccomp_release);
  if (!filter) return tl::unexpected(std::string("seccomp: no memory for a filter"));
  if (int error = seccomp_attr_set(filter.get(), SCMP_FLTATR_CTL_TSYNC, 1)) return failed("threads", error);
  // A violation fails with EPERM and does not end the process: the C library passes a thread's number, which a filter
  // cannot distinguish from another process's number, and callers work without the call.
  const uint32_t refused = violation == Violation::kill ? uint32_t(SCMP_ACT_ERRNO(EPERM)) : SCMP_ACT_LOG;
  int error = 0;
  auto forbid = [&](int number, scmp_arg_cmp when) {
    if (error == 0) error = seccomp_rule_add(filter.get(), refused, number, 1, when);
  };
  constexpr scmp_datum_t kWord = 0xffff'ffff;
  // A rule compares an argument once. A value that is neither zero nor `self` has a bit that `self` has not, or, of two
  // bits of `self` that follow each other in a ring, one without the other.
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
  // Signals to the owner of a descriptor, whichever signal.
  for (int command : {F_SETOWN, F_SETOWN_EX, F_SETSIG})
    forbid(SCMP_SYS(fcntl), SCMP_A1(SCMP_CMP_MASKED_EQ, kWord, scmp_datum_t(command)));
  // The same by other calls; and input into a terminal, which standard error may be.
  for (unsigned command : {unsigned(FIOSETOWN), unsigned(SIOCSPGRP), unsigned(TIOCSTI), unsigned(TIOCLINUX)})
    forbid(SCMP_SYS(ioctl), SCMP_A1(SCMP_CMP_MASKED_EQ, kWord, scmp_datum_t(command)));
  // Landlock does not cover these calls, and this process owns all files of the server's user, such as its own program
  // and the server's key. Callers work without the calls: the driver on its devices, the C library on its shared files.
  for (int number : {SCMP_SYS(chmod), SCMP_SYS(fchmod), SCMP_SYS(fchmodat), SCMP_SYS(chown), SCMP_SYS(fchown),
                     SCMP_SYS(lchown), SCMP_SYS(fchownat)})
    if (error == 0) error = seccomp_rule_add(filter.get(), refused, number, 0);
  // The ends of other socket pairs stay connected to each other; a datagram socket can send to any address.
  constexpr scmp_datum_t kSocketType = 0xf;  // without SOCK_CLOEXEC and SOCK_NONBLOCK
  for (int type : {SOCK_DGRAM, SOCK_RAW})
    forbid(SCMP_SYS(socketpair), SCMP_A1(SCMP_CMP_MASKED_EQ, kSocketType, scmp_datum_t(type)));
  // The process that closes the last descriptor of such a socket waits until its data are sent or the time is over.
  // That process would be the broker, if it received the socket.
  if (error == 0)
    error = seccomp_rule_add(filter.get(), refused, SCMP_SYS(setsockopt), 2,
                             SCMP_CMP64(1, SCMP_CMP_MASKED_EQ, kWord, scmp_datum_t(SOL_SOCKET)),
                             SCMP_CMP64(2, SCMP_CMP_MASKED_EQ, kWord, scmp_datum_t(SO_LINGER)));
  // Space beyond the end of a file (FALLOC_FL_KEEP_SIZE) is not part of the file's size, so neither RLIMIT_FSIZE nor
  // CacheKeeper would count it.
  forbid(SCMP_SYS(fallocate), SCMP_A1(SCMP_CMP_NE, 0));
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
