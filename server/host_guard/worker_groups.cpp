#include "server/host_guard/worker_groups.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <span>
#include <string_view>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/base/owned_descriptor.hpp"
#include "server/module_cache/digest.hpp"

namespace gpuwire::server {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTenantPrefix = "gpuwire-tenant-";
constexpr size_t kNameDigits = 32;  // of the digest: no two tenants of a server have the same

// The kernel answers each write by itself, so the word is written by one system call. It replaces what a plain file
// had: a shorter number must not keep the last digits of a longer one.
tl::expected<void, std::string> write_word(const fs::path& file, const std::string& word) {
  OwnedDescriptor descriptor(::open(file.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC));
  if (descriptor && ::write(descriptor.get(), word.data(), word.size()) == ssize_t(word.size())) return {};
  return tl::unexpected(fmt::format("{}: {}", file.string(), std::strerror(errno)));
}

tl::expected<void, std::string> make(const fs::path& group) {
  if (::mkdir(group.c_str(), 0755) == 0 || errno == EEXIST) return {};
  return tl::unexpected(fmt::format("{}: {}", group.string(), std::strerror(errno)));
}

// Returns whether the process is one of this program's own, its keeper or a worker. Processes can change their names,
// so no other decision uses this.
bool is_ours(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/comm", process));
  std::string name;
  return std::getline(file, name) && name.starts_with("gpuwire-");
}

// The group of a previous server, which did not divide it.
void move_ours(const fs::path& from, const fs::path& to) {
  std::ifstream file(from / "cgroup.procs");
  for (pid_t process; file >> process;) {
    if (is_ours(process)) static_cast<void>(write_word(to / "cgroup.procs", std::to_string(process)));
  }
}

// Removes the groups of an earlier server, which may have had other tenants. A group with processes stays.
void remove_empty(const fs::path& own) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(own, error))
    if (entry.path().filename().string().starts_with(kTenantPrefix)) ::rmdir(entry.path().c_str());
}

std::set<std::string> controllers_of(const fs::path& own) {
  std::ifstream file(own / "cgroup.controllers");
  return {std::istream_iterator<std::string>(file), {}};
}

// On a machine whose controllers are in cgroup v1, groups of v2 have no controllers.
tl::expected<void, std::string> has_controllers(const fs::path& own) {
  const std::set<std::string> given = controllers_of(own);
  for (const char* needed : {"memory", "pids"}) {
    if (!given.contains(needed))
      return tl::unexpected(fmt::format("{}: no controller \"{}\"", (own / "cgroup.controllers").string(), needed));
  }
  return {};
}

}  // namespace

// Each class gets this multiple of the next class's processor time, in the order of the scheduler's classes, so that
// background work does not delay interactive work.
unsigned processor_weight(scheduler::ServiceClass service_class) {
  switch (service_class) {
    case scheduler::ServiceClass::realtime: return 1000;
    case scheduler::ServiceClass::interactive: return 400;
    case scheduler::ServiceClass::batch: return 100;
    case scheduler::ServiceClass::scavenger: return 10;
  }
  return 100;
}

tl::expected<fs::path, std::string> WorkerGroups::own_group() {
  const fs::path mount = "/sys/fs/cgroup";
  if (!fs::exists(mount / "cgroup.controllers"))
    return tl::unexpected(std::string("this machine has no cgroup v2 at /sys/fs/cgroup"));
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (line.starts_with("0::/")) return mount / line.substr(std::strlen("0::/"));
  }
  return tl::unexpected(std::string("this process is in no cgroup v2"));
}

tl::expected<WorkerGroups, std::string> WorkerGroups::open(const fs::path& own) {
  if (auto given = has_controllers(own); !given) return tl::unexpected(given.error());
  const fs::path broker = own / "gpuwire-broker";
  if (auto made = make(broker); !made) return tl::unexpected(made.error());
  if (auto moved = write_word(broker / "cgroup.procs", std::to_string(::getpid())); !moved) {
    ::rmdir(broker.c_str());
    return tl::unexpected(moved.error());
  }
  move_ours(own, broker);
  if (auto divided = write_word(own / "cgroup.subtree_control", "+memory +pids"); !divided) {
    static_cast<void>(write_word(own / "cgroup.procs", std::to_string(::getpid())));
    ::rmdir(broker.c_str());
    return tl::unexpected(divided.error());
  }
  remove_empty(own);
  // Enabled separately: if the server may not divide processor time, memory is still bounded.
  const bool weighs = controllers_of(own).contains("cpu") && write_word(own / "cgroup.subtree_control", "+cpu");
  if (weighs) static_cast<void>(write_word(broker / "cpu.weight", std::to_string(kBrokerWeight)));
  return WorkerGroups(own, weighs);
}

WorkerGroups::~WorkerGroups() {
  for (const std::string& tenant : made_) ::rmdir(group(tenant).c_str());
}

std::string WorkerGroups::name_of(const std::string& tenant) {
  return std::string(kTenantPrefix) + hex(sha256(std::as_bytes(std::span(tenant)))).substr(0, kNameDigits);
}

tl::expected<void, std::string> WorkerGroups::bound(const std::string& tenant, uint64_t bytes) {
  const fs::path folder = group(tenant);
  if (!made_.contains(tenant)) {
    if (auto made = make(folder); !made) return made;
    made_.insert(tenant);
    static_cast<void>(write_word(folder / "memory.swap.max", "0"));  // a kernel without swap has no such file
    if (auto bounded = write_word(folder / "pids.max", std::to_string(kGroupProcessesMax)); !bounded) return bounded;
  }
  return write_word(folder / "memory.max", bytes == UINT64_MAX ? "max" : std::to_string(bytes));
}

tl::expected<void, std::string> WorkerGroups::weigh(const std::string& tenant, scheduler::ServiceClass service_class) {
  if (!weighs_) return {};
  return write_word(group(tenant) / "cpu.weight", std::to_string(processor_weight(service_class)));
}

tl::expected<void, std::string> WorkerGroups::join(const std::string& tenant, pid_t worker) {
  return write_word(group(tenant) / "cgroup.procs", std::to_string(worker));
}

void WorkerGroups::remove(const std::string& tenant) {
  // A process that was just reaped may still be in the group; then the group stays and is used again.
  if (::rmdir(group(tenant).c_str()) == 0) made_.erase(tenant);
}

}  // namespace gpuwire::server
