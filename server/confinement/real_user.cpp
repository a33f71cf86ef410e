#include "server/confinement/real_user.hpp"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>

#include <fmt/format.h>
#include <linux/capability.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gpuwire::server {
namespace {

constexpr uint32_t kUserRight = 1u << CAP_SETUID;
static_assert(CAP_SETUID < 32, "in the first word of the kernel's two");
constexpr scmp_datum_t kWord = 0xffff'ffff;

struct Capabilities {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct words[2] = {};

  bool read() { return ::syscall(SYS_capget, &header, words) == 0; }
  bool write() { return ::syscall(SYS_capset, &header, words) == 0; }
};

// Collects rules until one fails; keeps the first error.
class Refusals {
 public:
  Refusals() : filter_(seccomp_init(SCMP_ACT_ALLOW), seccomp_release) {}

  template <class... Conditions>
  void refuse(int number, int with, Conditions... when) {
    if (filter_ && error_ == 0)
      error_ = seccomp_rule_add(filter_.get(), SCMP_ACT_ERRNO(uint32_t(with)), number, sizeof...(when), when...);
  }
  // The kernel takes the lower word of an argument.
  void refuse_equal(int number, unsigned argument, uint32_t value) {
    refuse(number, EPERM, SCMP_CMP64(argument, SCMP_CMP_MASKED_EQ, kWord, scmp_datum_t{value}));
  }
  // Matches every value but -1, which means "unchanged": a word with a bit that is not set.
  void refuse_change(int number, unsigned argument) {
    for (unsigned bit = 0; bit < 32; ++bit)
      refuse(number, EPERM, SCMP_CMP64(argument, SCMP_CMP_MASKED_EQ, scmp_datum_t{1} << bit, 0));
  }
  void refuse_flag(int number, unsigned argument, uint32_t flag) {
    refuse(number, EPERM, SCMP_CMP64(argument, SCMP_CMP_MASKED_EQ, scmp_datum_t{flag}, scmp_datum_t{flag}));
  }
  int load() {
    if (!filter_) return -ENOMEM;
    if (error_ == 0) error_ = seccomp_attr_set(filter_.get(), SCMP_FLTATR_CTL_TSYNC, 1);
    return error_ ? error_ : seccomp_load(filter_.get());
  }

 private:
  std::unique_ptr<std::remove_pointer_t<scmp_filter_ctx>, void (*)(scmp_filter_ctx)> filter_;
  int error_ = 0;
};

tl::expected<void, std::string> refuse_other_changes() {
  Refusals refusals;
  for (int number : {SCMP_SYS(setuid), SCMP_SYS(setreuid), SCMP_SYS(setfsuid)}) refusals.refuse(number, EPERM);
  refusals.refuse_equal(SCMP_SYS(setresuid), 0, 0);
  for (unsigned argument : {1u, 2u}) refusals.refuse_change(SCMP_SYS(setresuid), argument);
  // Within a user namespace the right would apply to any user of the machine.
  for (int number : {SCMP_SYS(unshare), SCMP_SYS(clone)}) refusals.refuse_flag(number, 0, CLONE_NEWUSER);
  // clone3 hides its flags from filters; if the kernel reports the call as missing, the C library uses clone.
  refusals.refuse(SCMP_SYS(clone3), ENOSYS);
  if (int error = refusals.load())
    return tl::unexpected(fmt::format("seccomp: changes of user: {}", std::strerror(-error)));
  return {};
}

}  // namespace

bool may_give_users() {
  Capabilities has;
  return has.read() && (has.words[0].permitted & kUserRight) != 0;
}

tl::expected<void, std::string> give_real_users_only() {
  if (::geteuid() == 0) return {};
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);  // without which only root may lay a filter over a process
  ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  Capabilities has;
  if (!has.read()) return tl::unexpected(fmt::format("capget: {}", std::strerror(errno)));
  // The right stays in the permitted set, so that children can inherit it, but not in the effective set.
  has.words[0].inheritable |= kUserRight;
  has.words[0].effective &= ~kUserRight;
  if (!has.write()) return tl::unexpected(fmt::format("capset: {}", std::strerror(errno)));
  return refuse_other_changes();
}

// A program of root starts with all rights, so this changes nothing for root.
PassOnUserRight::PassOnUserRight() { ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_SETUID, 0, 0); }
PassOnUserRight::~PassOnUserRight() { ::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_LOWER, CAP_SETUID, 0, 0); }

tl::expected<void, std::string> take_real_user(uid_t user) {
  constexpr uid_t kAsItIs = ~uid_t{0};
  if (::setresuid(user, kAsItIs, kAsItIs) != 0)
    return tl::unexpected(fmt::format("it cannot get the real user {}: {}", user, std::strerror(errno)));
  return {};
}

}  // namespace gpuwire::server
