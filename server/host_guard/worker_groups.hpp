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

// The limit of processes and threads of one tenant.
inline constexpr unsigned kGroupProcessesMax = 16 * 1024;
// Shares of processor time (cpu.weight): of the broker and its helper processes, which use little but could delay all
// sessions, and of all workers of a tenant together, whatever the number of its sessions.
inline constexpr unsigned kBrokerWeight = 2000;
unsigned processor_weight(scheduler::ServiceClass service_class);

// Groups are named by tenants and not numbered: after a restart with another configuration a number would belong to
// another tenant, while the kernel still charges the group for memory that its first workers left in it. The destructor
// removes the groups, and the constructor removes empty groups of an earlier server.
class WorkerGroups {
 public:
  // Makes the groups within `own`, a group whose memory this process may divide. This process, its later children, and
  // processes of a previous server in `own` move into a separate group there, as version 2 requires. The error gives
  // the reason why groups are impossible: no such mount, no right, other processes in the group.
  static tl::expected<WorkerGroups, std::string> open(const std::filesystem::path& own);
  // Returns this process's group. The error: the machine has no version 2.
  static tl::expected<std::filesystem::path, std::string> own_group();

  WorkerGroups(WorkerGroups&&) = default;
  WorkerGroups& operator=(WorkerGroups&&) = delete;
  ~WorkerGroups();

  // Returns whether the tenants' groups also divide processor time.
  bool weighs() const { return weighs_; }
  // Sets the bound of all processes of the tenant together; UINT64_MAX: none.
  tl::expected<void, std::string> bound(const std::string& tenant, uint64_t bytes);
  // Call it after bound(). Has no effect if groups do not divide processor time.
  tl::expected<void, std::string> weigh(const std::string& tenant, scheduler::ServiceClass service_class);
  // After bound().
  tl::expected<void, std::string> join(const std::string& tenant, pid_t worker);
  // Called when no worker of the tenant is left.
  void remove(const std::string& tenant);

  // Returns the name of a tenant's group, which consists of letters and digits for any tenant name.
  static std::string name_of(const std::string& tenant);

 private:
  WorkerGroups(std::filesystem::path own, bool weighs) : own_(std::move(own)), weighs_(weighs) {}
  std::filesystem::path group(const std::string& tenant) const { return own_ / name_of(tenant); }

  std::filesystem::path own_;
  bool weighs_ = false;
  // Tenants.
  std::set<std::string> made_;
};

}  // namespace gpuwire::server
