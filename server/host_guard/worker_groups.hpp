// Control groups (cgroup v2, cgroups(7)) for the workers of each tenant, in which the kernel bounds their memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>

#include <sys/types.h>
#include <tl/expected.hpp>

namespace gpuwire::server {

// Processes and threads of one tenant at once.
inline constexpr unsigned kGroupProcessesMax = 16 * 1024;

// Removes its groups when it goes.
class WorkerGroups {
 public:
  // The groups are made beside `own`, a group whose memory this process may divide; it, what it starts later, and what
  // a server before it has left in `own`, move into one of its own there, as version 2 wants it. The error says why
  // there are none: no such mount, no right, other processes in the group.
  static tl::expected<WorkerGroups, std::string> open(const std::filesystem::path& own);
  // This process's group. The error: the machine has no version 2.
  static tl::expected<std::filesystem::path, std::string> own_group();

  WorkerGroups(WorkerGroups&&) = default;
  WorkerGroups& operator=(WorkerGroups&&) = delete;
  ~WorkerGroups();

  // What the tenant's processes may have together from now on.
  tl::expected<void, std::string> bound(uint64_t tenant, uint64_t bytes);
  // After bound().
  tl::expected<void, std::string> join(uint64_t tenant, pid_t worker);
  // No worker of the tenant is left.
  void remove(uint64_t tenant);

 private:
  explicit WorkerGroups(std::filesystem::path own) : own_(std::move(own)) {}
  std::filesystem::path group(uint64_t tenant) const;

  std::filesystem::path own_;
  std::set<uint64_t> made_;
};

}  // namespace gpuwire::server
