#include "server/config/configuration.hpp"

namespace gpuwire::server {

TenantMemory memory_on(const TenantConfiguration& tenant, unsigned gpu) {
  auto own = tenant.gpu_memory.find(gpu);
  return own == tenant.gpu_memory.end() ? tenant.memory : own->second;
}

Configuration open_configuration() {
  Configuration open;
  open.listen = {"127.0.0.1:9750"};
  open.open_tenant = kOpenTenant;
  open.tenants.push_back({.name = kOpenTenant, .gpus_wanted = 0});
  return open;
}

}  // namespace gpuwire::server
