// The tenants that the server knows now, by name and by the number that the scheduler's parts use.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/types.hpp"
#include "server/config/configuration.hpp"

namespace gpuwire::server {

struct Tenant {
  scheduler::TenantId id{};
  TenantConfiguration settings;
  bool known = true;  // false: removed from the configuration; its running sessions continue, under its last settings
};

// The broker's thread only.
class TenantDirectory {
 public:
  explicit TenantDirectory(std::vector<TenantConfiguration> tenants) { replace(std::move(tenants)); }

  // A name keeps its number for as long as the server runs, also when it goes and comes back.
  void replace(std::vector<TenantConfiguration> tenants);

  // The number of a tenant with sessions from an earlier time: a tenant that the configuration does not name is entered
  // as removed.
  scheduler::TenantId remember(const std::string& name);

  // Null: no such tenant, or not any more. Valid until replace().
  const Tenant* find(std::string_view name) const;
  // Also a removed one. Never null for a number that this directory has given.
  const Tenant* find(scheduler::TenantId id) const;
  // In the order of their numbers, those that have gone too.
  const std::vector<Tenant>& all() const { return tenants_; }

 private:
  std::vector<Tenant> tenants_;  // index: the number
  std::map<std::string, uint32_t, std::less<>> numbers_;
};

}  // namespace gpuwire::server
