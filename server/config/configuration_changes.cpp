#include "server/config/configuration_changes.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace gpuwire::server {
namespace {

const TenantConfiguration* find(const Configuration& in, const std::string& name) {
  auto found = std::find_if(in.tenants.begin(), in.tenants.end(), [&](const auto& one) { return one.name == name; });
  return found == in.tenants.end() ? nullptr : &*found;
}

// The keys of [tenants.NAME] whose values differ.
std::vector<std::string_view> keys_changed(const TenantConfiguration& a, const TenantConfiguration& b) {
  std::vector<std::string_view> keys;
  auto note = [&](std::string_view key, bool same) {
    if (!same) keys.push_back(key);
  };
  note("class", a.service_class == b.service_class);
  note("weight", a.weight == b.weight);
  note("share_max", a.share_max == b.share_max);
  note("share_min", a.share_min == b.share_min);
  note("memory", a.memory == b.memory && a.gpu_memory == b.gpu_memory);
  note("host_memory", a.host_memory_bytes == b.host_memory_bytes);
  note("dedup_memory", a.dedup_memory_bytes == b.dedup_memory_bytes);
  note("dedup_disk", a.dedup_disk_bytes == b.dedup_disk_bytes);
  note("gpus_allowed", a.gpus_allowed == b.gpus_allowed);
  note("gpus", a.gpus_wanted == b.gpus_wanted);
  note("sessions_max", a.sessions_max == b.sessions_max);
  note("queued_max", a.queued_max == b.queued_max);
  note("management_max", a.management_max == b.management_max);
  note("queue_time_max", a.queue_time_max_ms == b.queue_time_max_ms);
  note("kernel_time_max", a.kernel_time_max_ms == b.kernel_time_max_ms);
  note("idle_time_max", a.idle_time_max_ms == b.idle_time_max_ms);
  note("suspend", a.suspend == b.suspend);
  note("suspend_after", a.suspend_after_ms == b.suspend_after_ms);
  note("suspend_memory", a.suspend_memory_bytes == b.suspend_memory_bytes);
  note("suspend_eviction", a.suspend_eviction == b.suspend_eviction);
  note("resume_grace_max", a.resume_grace_max_ms == b.resume_grace_max_ms);
  note("budget", a.budget == b.budget);
  note("each_user", a.each_user == b.each_user);
  note("users", a.users == b.users);
  note("unix_users", a.unix_users == b.unix_users);
  return keys;
}

}  // namespace

std::vector<std::string> tenants_gone(const Configuration& before, const Configuration& after) {
  std::vector<std::string> gone;
  for (const TenantConfiguration& tenant : before.tenants)
    if (!find(after, tenant.name)) gone.push_back(tenant.name);
  return gone;
}

std::string changes_of_tenants(const Configuration& before, const Configuration& after) {
  std::vector<std::string> changes;
  for (const TenantConfiguration& tenant : after.tenants)
    if (!find(before, tenant.name)) changes.push_back(fmt::format("tenant {} is new", tenant.name));
  for (const std::string& name : tenants_gone(before, after)) changes.push_back(fmt::format("tenant {} is gone", name));
  for (const TenantConfiguration& tenant : after.tenants) {
    const TenantConfiguration* old = find(before, tenant.name);
    if (auto keys = old ? keys_changed(*old, tenant) : std::vector<std::string_view>{}; !keys.empty())
      changes.push_back(fmt::format("{} has another {}", tenant.name, fmt::join(keys, ", ")));
  }
  return fmt::format("{}", fmt::join(changes, "; "));
}

}  // namespace gpuwire::server
