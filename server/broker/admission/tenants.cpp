#include "server/broker/admission/tenants.hpp"

namespace gpuwire::server {

void TenantDirectory::replace(std::vector<TenantConfiguration> tenants) {
  for (Tenant& tenant : tenants_) tenant.known = false;
  for (TenantConfiguration& settings : tenants) {
    auto [at, added] = numbers_.try_emplace(settings.name, uint32_t(tenants_.size()));
    if (added) tenants_.push_back({.id = scheduler::TenantId(at->second)});
    Tenant& tenant = tenants_[at->second];
    tenant.settings = std::move(settings);
    tenant.known = true;
  }
}

scheduler::TenantId TenantDirectory::remember(const std::string& name) {
  auto [at, added] = numbers_.try_emplace(name, uint32_t(tenants_.size()));
  if (added) {
    tenants_.push_back({.id = scheduler::TenantId(at->second), .settings = {}, .known = false});
    tenants_.back().settings.name = name;
  }
  return scheduler::TenantId(at->second);
}

const Tenant* TenantDirectory::find(std::string_view name) const {
  auto found = numbers_.find(name);
  if (found == numbers_.end()) return nullptr;
  const Tenant& tenant = tenants_[found->second];
  return tenant.known ? &tenant : nullptr;
}

const Tenant* TenantDirectory::find(scheduler::TenantId id) const {
  return uint32_t(id) < tenants_.size() ? &tenants_[uint32_t(id)] : nullptr;
}

}  // namespace gpuwire::server
