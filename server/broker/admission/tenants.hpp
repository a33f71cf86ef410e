// TenantDirectory has the tenants that the server knows now, by name and by the scheduler's number.
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
  // False: removed from the configuration; its running sessions continue, under its last settings.
  bool known = true;
};

// The broker's thread only.
class TenantDirectory {
 public:
  explicit TenantDirectory(std::vector<TenantConfiguration> tenants) { replace(std::move(tenants)); }

  // Replaces the tenants. A name keeps its number for as long as the server runs, also when it is removed and added
  // again.
  void replace(std::vector<TenantConfiguration> tenants);

  // Returns the number of a tenant with sessions of an earlier broker; a tenant that the configuration does not name is
  // entered as removed.
  scheduler::TenantId remember(const std::string& name);

  // Returns null if the configuration names no such tenant (any more). Valid until replace().
  const Tenant* find(std::string_view name) const;
  // Returns the tenant, a removed one included; never null for a number of this directory.
  const Tenant* find(scheduler::TenantId id) const;
  // In the order of their numbers, removed tenants included.
  const std::vector<Tenant>& all() const { return tenants_; }

 private:
  // Index: the number.
  std::vector<Tenant> tenants_;
  std::map<std::string, uint32_t, std::less<>> numbers_;
};

}  // namespace gpuwire::server
