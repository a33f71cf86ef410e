// Control groups (cgroup v2, cgroups(7)) for the workers of each tenant, in which the kernel bounds their memory and
// shares out processor time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>

#include <sys/types.h>
#include <tl/expected.hpp>

#include "scheduler/types.hpp"

namespace gpuwire::server {

// Processes and threads of one tenant at once.
inline constexpr unsigned kGroupProcessesMax = 16 * 1024;
// Shares of processor time (cpu.weight): of the broker and the processes around it, which use little and hold up
// everybody, and of a tenant's workers together, however many sessions it has.
inline constexpr unsigned kBrokerWeight = 2000;
unsigned processor_weight(scheduler::ServiceClass service_class);

// Tenants are named, never numbered: a number is another tenant's after a restart with another configuration, while the
// kernel goes on charging the group for memory that its first workers left in it. The destructor removes the groups,
// and the constructor those that an earlier server has left empty.
class WorkerGroups {
 public:
  // The groups are made beside `own`, a group whose memory this process may divide; this process, its later children,
  // and processes of a previous server in `own`, move into one of its own there, as version 2 requires. The error gives
  // the reason why there are none: no such mount, no right, other processes in the group.
  static tl::expected<WorkerGroups, std::string> open(const std::filesystem::path& own);
  // This process's group. The error: the machine has no version 2.
  static tl::expected<std::filesystem::path, std::string> own_group();

  WorkerGroups(WorkerGroups&&) = default;
  WorkerGroups& operator=(WorkerGroups&&) = delete;
  ~WorkerGroups();

  // Whether the tenants' groups share out processor time, too.
  bool weighs() const { return weighs_; }
  // The bound of the tenant's processes together from now on; UINT64_MAX: none.
  tl::expected<void, std::string> bound(const std::string& tenant, uint64_t bytes);
  // After bound(). Without effect where groups do not weigh.
  tl::expected<void, std::string> weigh(const std::string& tenant, scheduler::ServiceClass service_class);
  // After bound().
  tl::expected<void, std::string> join(const std::string& tenant, pid_t worker);
  // No worker of the tenant is left.
  void remove(const std::string& tenant);

  // The name of a tenant's group: of letters and digits, whatever the tenant is called.
  static std::string name_of(const std::string& tenant);

 private:
  WorkerGroups(std::filesystem::path own, bool weighs) : own_(std::move(own)), weighs_(weighs) {}
  std::filesystem::path group(const std::string& tenant) const { return own_ / name_of(tenant); }

  std::filesystem::path own_;
  bool weighs_ = false;
  std::set<std::string> made_;  // tenants
};

}  // namespace gpuwire::server
