#include "server/confinement/landlock.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "server/base/owned_descriptor.hpp"
#include "server/confinement/all_threads.hpp"

namespace gpuwire::server {
namespace {

// The kernel's interface (linux/landlock.h), written out because the header of the system may be older than its kernel.
struct RulesetAttributes {
  uint64_t handled_access_fs = 0;
  uint64_t handled_access_net = 0;  // from ABI 4 on
  uint64_t scoped = 0;              // from ABI 6 on
};
struct [[gnu::packed]] PathBeneath {
  uint64_t allowed_access = 0;
  int32_t parent_fd = -1;
};
constexpr int kRulePathBeneath = 1;
constexpr uint32_t kGetVersion = 1;

enum FileRight : uint64_t {
  kExecute = 1u << 0,
  kWriteFile = 1u << 1,
  kReadFile = 1u << 2,
  kReadDir = 1u << 3,
  kRemoveDir = 1u << 4,
  kRemoveFile = 1u << 5,
  kMakeChar = 1u << 6,
  kMakeDir = 1u << 7,
  kMakeReg = 1u << 8,
  kMakeSock = 1u << 9,
  kMakeFifo = 1u << 10,
  kMakeBlock = 1u << 11,
  kMakeSym = 1u << 12,
  kRefer = 1u << 13,        // ABI 2
  kTruncate = 1u << 14,     // ABI 3
  kIoctlDevice = 1u << 15,  // ABI 5
};
constexpr uint64_t kBindTcp = 1, kConnectTcp = 2;
constexpr uint64_t kScopeAbstractSockets = 1, kScopeSignals = 2;

constexpr uint64_t kRead = kReadFile | kReadDir;
constexpr uint64_t kWrite =
    kRead | kWriteFile | kRemoveDir | kRemoveFile | kMakeDir | kMakeReg | kMakeSym | kRefer | kTruncate;
constexpr uint64_t kDevice = kRead | kWriteFile | kIoctlDevice;
// The rights that a rule can grant for a file that is no folder.
constexpr uint64_t kOfFiles = kExecute | kWriteFile | kReadFile | kTruncate | kIoctlDevice;

uint64_t rights(PathAccess access) {
  switch (access) {
    case PathAccess::read: return kRead;
    case PathAccess::write: return kWrite;
    case PathAccess::device: return kDevice;
  }
  return 0;
}

// Returns all rights that a kernel of this ABI knows: Landlock does not restrict unlisted ones.
uint64_t known_rights(long abi) {
  uint64_t all = kMakeSym | (kMakeSym - 1);
  if (abi >= 2) all |= kRefer;
  if (abi >= 3) all |= kTruncate;
  if (abi >= 5) all |= kIoctlDevice;
  return all;
}

std::string system_error(const char* what) { return fmt::format("{}: {}", what, std::strerror(errno)); }

tl::expected<void, std::string> add(int ruleset, const PathRule& rule, uint64_t known) {
  OwnedDescriptor path(::open(rule.path.c_str(), O_PATH | O_CLOEXEC));
  if (!path) return {};
  struct stat found {};
  if (::fstat(path.get(), &found) != 0) return {};
  uint64_t allowed = rights(rule.access) & known;
  if (!S_ISDIR(found.st_mode)) allowed &= kOfFiles;
  PathBeneath beneath{allowed, path.get()};
  if (::syscall(SYS_landlock_add_rule, ruleset, kRulePathBeneath, &beneath, 0) != 0)
    return tl::unexpected(system_error(fmt::format("landlock_add_rule for {}", rule.path.string()).c_str()));
  return {};
}

}  // namespace

namespace {

// 0: the kernel has no Landlock.
long landlock_abi() { return std::max(0l, ::syscall(SYS_landlock_create_ruleset, nullptr, 0, kGetVersion)); }

tl::expected<OwnedDescriptor, std::string> make_ruleset(std::span<const PathRule> rules, Network network, long abi) {
  uint64_t known = known_rights(abi);
  RulesetAttributes attributes{known, abi >= 4 && network == Network::none ? kBindTcp | kConnectTcp : 0,
                               abi >= 6 ? kScopeAbstractSockets | kScopeSignals : 0};
  size_t size = abi >= 6   ? sizeof attributes
                : abi >= 4 ? offsetof(RulesetAttributes, scoped)
                           : offsetof(RulesetAttributes, handled_access_net);
  OwnedDescriptor ruleset(int(::syscall(SYS_landlock_create_ruleset, &attributes, size, 0)));
  if (!ruleset) return tl::unexpected(system_error("landlock_create_ruleset"));
  for (const PathRule& rule : rules) {
    if (auto added = add(ruleset.get(), rule, known); !added) return tl::unexpected(added.error());
  }
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return tl::unexpected(system_error("no_new_privs"));
  return ruleset;
}

}  // namespace

tl::expected<std::string, std::string> restrict_paths(std::span<const PathRule> rules, Network network) {
  const long abi = landlock_abi();
  if (abi == 0) return "this kernel has no Landlock: the worker's files are not restricted";
  auto ruleset = make_ruleset(rules, network, abi);
  if (!ruleset) return tl::unexpected(ruleset.error());
  if (::syscall(SYS_landlock_restrict_self, ruleset->get(), 0) != 0)
    return tl::unexpected(system_error("landlock_restrict_self"));
  if (abi < 4) return "this kernel's Landlock restricts files only, not connections";
  if (abi < 6) return "this kernel's Landlock does not restrict signals and abstract sockets";
  return "";
}

tl::expected<void, std::string> restrict_paths_further(std::span<const PathRule> rules, Network network) {
  const long abi = landlock_abi();
  if (abi == 0) return {};
  auto ruleset = make_ruleset(rules, network, abi);
  if (!ruleset) return tl::unexpected(ruleset.error());
  if (auto restricted = call_in_all_threads(SYS_landlock_restrict_self, ruleset->get(), 0); !restricted)
    return tl::unexpected(fmt::format("landlock_restrict_self in all threads: {}", restricted.error()));
  return {};
}

}  // namespace gpuwire::server
