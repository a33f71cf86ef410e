#include "server/worker/confinement.hpp"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <sstream>

#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "server/base/host_memory.hpp"
#include "server/base/machine.hpp"
#include "server/ipc/channel.hpp"
#include "server/confinement/landlock.hpp"
#include "server/confinement/process_rights.hpp"
#include "server/confinement/real_user.hpp"
#include "server/confinement/system_calls.hpp"

namespace gpuwire::server {
namespace {

// A worker's bound is this part of the bound that it inherits from the broker.
constexpr rlim_t kWorkerDescriptorsPart = 2, kWorkerDescriptorsMax = 16 * 1024;
// The bound of a worker's queued signals and timers, which the kernel counts for all processes of the user together: it
// is below the broker's, so that the broker always has room.
constexpr rlim_t kWorkerSignalsMax = 1024;

// Libraries, and files about the machine that the C library and the drivers read. In /proc only the process's own and
// the machine's files: other processes' memory and environments are there, too.
constexpr const char* kReadable[] = {
    "/usr",
    "/lib",
    "/lib64",
    "/opt",
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
    "/etc/localtime",
    "/etc/nvidia",
    "/etc/OpenCL",
    "/etc/vulkan",
    "/sys",
    "/proc/driver",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/version",
    "/proc/modules",
    "/proc/devices",
    "/proc/filesystems",
    "/proc/sys",
    "/run/nvidia-persistenced",
    "/run/udev",
};
// The user-space drivers for network cards, and the kernel's files about their addresses.
constexpr const char* kRdmaReadable[] = {"/etc/libibverbs.d", "/etc/ucx", "/etc/rdma"};
constexpr const char* kRdmaDevices = "/dev/infiniband";
constexpr const char* kDevices[] = {"/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"};

std::vector<std::filesystem::path> folders_of(const char* list) {
  std::vector<std::filesystem::path> folders;
  std::stringstream stream(list ? list : "");
  for (std::string folder; std::getline(stream, folder, ':');)
    if (!folder.empty()) folders.emplace_back(folder);
  return folders;
}

std::vector<PathRule> path_rules(const ConfinementRules& rules) {
  std::vector<PathRule> out;
  for (const char* path : kReadable) out.push_back({path, PathAccess::read});
  if (rules.rdma)
    for (const char* path : kRdmaReadable) out.push_back({path, PathAccess::read});
  for (const char* path : kDevices) out.push_back({path, PathAccess::device});
  out.push_back({"/dev/shm", PathAccess::write});    // the driver shares its IPC handles' books there
  out.push_back({"/proc/self", PathAccess::write});  // the driver names its threads there
  for (const auto& path : folders_of(std::getenv("LD_LIBRARY_PATH"))) out.push_back({path, PathAccess::read});
  for (const auto& path : rules.read) out.push_back({path, PathAccess::read});
  for (const auto& path : rules.write) {
    std::error_code ignored;
    std::filesystem::create_directories(path, ignored);
    out.push_back({path, PathAccess::write});
  }
  for (const auto& path : rules.devices) out.push_back({path, PathAccess::device});
  return out;
}

Network network_of(const ConfinementRules& rules) { return rules.rdma ? Network::allowed : Network::none; }

// The kernel counts pending signals for the user, and compares the count with each process's own bound.
void bound_own_signals() {
  rlimit bound{};
  if (::getrlimit(RLIMIT_SIGPENDING, &bound) != 0) return;
  bound.rlim_max = std::min<rlim_t>(bound.rlim_max / 2, kWorkerSignalsMax);
  bound.rlim_cur = std::min(bound.rlim_cur, bound.rlim_max);
  ::setrlimit(RLIMIT_SIGPENDING, &bound);
}

// The kernel counts descriptors in unread messages for the user, and compares the count with the sender's own bound:
// all workers together can leave fewer in the kernel than the broker may send.
void bound_own_descriptors() {
  rlimit bound{};
  if (::getrlimit(RLIMIT_NOFILE, &bound) != 0) return;
  bound.rlim_max = std::min<rlim_t>(bound.rlim_max / kWorkerDescriptorsPart, kWorkerDescriptorsMax);
  bound.rlim_cur = std::min(bound.rlim_cur, bound.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &bound);
}

// Closes all descriptors above the broker's, except `kept`.
void close_descriptors(int kept) {
  unsigned first = ipc::kDescriptor + 1;
  if (kept > ipc::kDescriptor) {
    if (unsigned(kept) > first) ::close_range(first, unsigned(kept) - 1, 0);
    first = unsigned(kept) + 1;
  }
  ::close_range(first, ~0u, 0);
}

}  // namespace

// nvidia0, nvidiactl, nvidia-uvm, nvidia-caps/...
std::vector<std::filesystem::path> device_files(bool rdma) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error))
    if (entry.path().filename().string().starts_with("nvidia")) files.push_back(entry.path());
  if (rdma) files.push_back(kRdmaDevices);
  return files;
}

tl::expected<std::string, std::string> confine_process(const ConfinementRules& rules) {
  // The real user is set before the bounds, because the kernel counts some of them for it.
  if (rules.real_user) {
    if (auto taken = take_real_user(*rules.real_user); !taken) return tl::unexpected(taken.error());
  }
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  bound_own_descriptors();
  bound_own_signals();
  set_kill_order(::getpid(), kKillOrderOfWorkers);
  close_descriptors(rules.kept_descriptor);
  // A terminal's Ctrl-C and a service manager's SIGTERM reach the whole group; the broker decides how sessions end. A
  // write beyond a file's bound is an error for its writer.
  for (int number : {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGXFSZ}) std::signal(number, SIG_IGN);
  tl::expected<std::string, std::string> restricted = "";
  if (rules.level != Confinement::off) restricted = restrict_paths(path_rules(rules), network_of(rules));
  if (rules.level != Confinement::off || rules.real_user) drop_capabilities();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);  // last: a change of credentials clears it
  return restricted;
}

tl::expected<void, std::string> confine_to_tenant(const ConfinementRules& rules,
                                                  const std::vector<std::filesystem::path>& write) {
  if (rules.level == Confinement::off) return {};
  ConfinementRules of_tenant = rules;
  of_tenant.write = write;
  return restrict_paths_further(path_rules(of_tenant), network_of(rules));
}

void bound_own_memory(uint64_t bytes) {
  if (bytes == 0) return;
  // The kernel counts memory when it is mapped, not when it is touched. Address space that a driver reserves is not
  // writable and does not count.
  rlim_t most = data_bytes() + bytes + kHostSlackBytes;
  rlimit bound{most, most};
  ::setrlimit(RLIMIT_DATA, &bound);
}

void bound_own_files(uint64_t bytes) {
  rlimit bound{};
  if (::getrlimit(RLIMIT_FSIZE, &bound) != 0) return;
  bound.rlim_max = std::min<rlim_t>(bound.rlim_max, std::max(bytes, kWorkerFileBytes));
  bound.rlim_cur = std::min(bound.rlim_cur, bound.rlim_max);
  ::setrlimit(RLIMIT_FSIZE, &bound);
}

tl::expected<void, std::string> confine_system_calls(const ConfinementRules& rules) {
  if (rules.level == Confinement::off) return {};
  const Violation violation = rules.level == Confinement::enforce ? Violation::kill : Violation::log;
  return confine_system_calls(rules.rdma ? ProcessKind::rdma_worker : ProcessKind::worker, violation);
}

}  // namespace gpuwire::server
