#include "server/config/configuration.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "protocol/units/duration.hpp"

namespace gpuwire::server {
namespace {

constexpr double kGiB = 1u << 30;

constexpr uint64_t kBudgetMsMax = 1000ull * 31 * 24 * 3600 * 1000;  // a thousand GPUs for all of a month

}  // namespace

tl::expected<uint64_t, std::string> parse_budget(std::string_view text) {
  constexpr std::string_view kPeriod = "/month";
  if (text == "none") return 0;
  if (text.ends_with(kPeriod)) {
    auto ms = units::parse_duration_ms(text.substr(0, text.size() - kPeriod.size()));
    if (ms && *ms != 0 && *ms <= kBudgetMsMax) return *ms;
  }
  return tl::unexpected(std::string("must be GPU time in a month, such as \"200h/month\", or \"none\""));
}

TenantMemory memory_on(const TenantConfiguration& tenant, unsigned gpu) {
  auto own = tenant.gpu_memory.find(gpu);
  return own == tenant.gpu_memory.end() ? tenant.memory : own->second;
}

UserConfiguration bounds_of_user(const TenantConfiguration& tenant, const std::string& user) {
  if (user.empty()) return {};
  auto found = tenant.users.find(user);
  return found == tenant.users.end() ? tenant.each_user : found->second;
}

bool bounds_memory_of_users(const TenantConfiguration& tenant) {
  return tenant.each_user.memory_limit_bytes != 0 ||
         std::any_of(tenant.users.begin(), tenant.users.end(),
                     [](const auto& one) { return one.second.memory_limit_bytes != 0; });
}

bool has_budget(const TenantConfiguration& tenant) {
  return tenant.budget.ms != 0 || tenant.each_user.budget.ms != 0 ||
         std::any_of(tenant.users.begin(), tenant.users.end(),
                     [](const auto& one) { return one.second.budget.ms != 0; });
}

bool has_guarantee(const TenantConfiguration& tenant) {
  return tenant.memory.guaranteed_bytes ||
         std::any_of(tenant.gpu_memory.begin(), tenant.gpu_memory.end(),
                     [](const auto& gpu) { return gpu.second.guaranteed_bytes != 0; });
}

ConfigurationErrors check_devices(const Configuration& configuration, const std::vector<uint64_t>& device_bytes) {
  ConfigurationErrors errors;
  auto check_gpu = [&](unsigned gpu, const std::string& who) {
    if (gpu >= device_bytes.size())
      errors.push_back(fmt::format("{} names GPU {}, and the server has {}", who, gpu, device_bytes.size()));
  };
  for (unsigned gpu : configuration.gpus) check_gpu(gpu, "gpus of [server]");
  for (const TenantConfiguration& tenant : configuration.tenants) {
    for (unsigned gpu : tenant.gpus_allowed) check_gpu(gpu, fmt::format("gpus_allowed of [tenants.{}]", tenant.name));
    for (const auto& [gpu, memory] : tenant.gpu_memory)
      check_gpu(gpu, fmt::format("[tenants.{}.gpu.{}]", tenant.name, gpu));
  }
  for (unsigned gpu = 0; gpu < device_bytes.size(); ++gpu) {
    double guaranteed = 0;  // bytes; a sum of integers could wrap
    for (const TenantConfiguration& tenant : configuration.tenants)
      guaranteed += double(memory_on(tenant, gpu).guaranteed_bytes);
    if (guaranteed > double(device_bytes[gpu]))
      errors.push_back(fmt::format("the tenants are guaranteed {:.1f} GiB together on GPU {}, which has {:.1f} GiB",
                                   guaranteed / kGiB, gpu, double(device_bytes[gpu]) / kGiB));
  }
  return errors;
}

Configuration open_configuration() {
  Configuration open;
  open.listen = {"127.0.0.1:9750"};
  open.open_tenant = kOpenTenant;
  open.tenants.push_back({.name = kOpenTenant, .gpus_wanted = 0});
  return open;
}

}  // namespace gpuwire::server
