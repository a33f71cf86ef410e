#include "server/host_guard/host_guard.hpp"

#include <algorithm>
#include <csignal>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "server/base/machine.hpp"

namespace gpuwire::server {
namespace {

using scheduler::TenantId;

constexpr uint64_t kMiB = 1u << 20;
// The software device's name (server/software_device/driver/device/device.cpp).
constexpr const char* kSoftwareDeviceName = "gpuwire software device";

uint64_t sum(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

int signal_process(const OwnedDescriptor& process, int number) {
  return int(::syscall(SYS_pidfd_send_signal, process.get(), number, nullptr, 0));
}

}  // namespace

int processor_niceness(scheduler::ServiceClass service_class) {
  switch (service_class) {
    case scheduler::ServiceClass::realtime: return -4;
    case scheduler::ServiceClass::interactive: return -2;
    case scheduler::ServiceClass::batch: return 0;
    case scheduler::ServiceClass::scavenger: return 10;
  }
  return 0;
}

int kill_order(const KillOrder& facts) {
  if (facts.machine_bytes == 0) return kKillOrderOfWorkers;
  auto thousandths = [&](uint64_t bytes) {
    return int(double(kKillOrderMax) * std::min(1.0, double(bytes) / double(facts.machine_bytes)));
  };
  // The score uses half of the memory, so that the sum stays below that of a tenant with an excess.
  const int sum = kKillOrderOfWorkers + thousandths(facts.counted_bytes) / 2;
  const int within = std::max(0, sum - thousandths(facts.process_bytes));
  const double part = facts.slack_bytes ? std::min(1.0, double(facts.excess_bytes) / double(facts.slack_bytes)) : 1.0;
  return within + int(part * (kKillOrderMax - within));
}

HostGuard::HostGuard(boost::asio::io_context& io, SessionControl& control, Settings settings)
    : control_(control), settings_(std::move(settings)), timer_(io) {
  if (settings_.machine_bytes)
    settings_.slack_bytes = std::min(settings_.slack_bytes, settings_.machine_bytes / kSlackPartOfMachine);
}

void HostGuard::devices_known(std::span<const ServerDevice> devices) {
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].name != kSoftwareDeviceName) continue;
    devices_here_.insert(scheduler::DeviceIndex(i));
    device_bytes_here_ += devices[i].bytes;
  }
}

void HostGuard::tenants_changed(const TenantDirectory& tenants) {
  for (const Tenant& tenant : tenants.all()) {
    uint64_t configured = tenant.settings.host_memory_bytes;
    host_bytes_[tenant.id] = configured ? configured : settings_.host_bytes;
    if (auto [known, fresh] = tenants_.try_emplace(tenant.id); fresh || known->second.name != tenant.settings.name)
      known->second = {tenant.settings.name, tenant.settings.service_class};
    else if (std::exchange(known->second.service_class, tenant.settings.service_class) != tenant.settings.service_class)
      share_processors(tenant.id);
  }
  for (const auto& [tenant, bytes] : host_bytes_) {
    if (std::ranges::any_of(watched_, [&](const auto& entry) { return entry.second.record.tenant_id == tenant; }))
      bound_group(tenant);
  }
}

size_t HostGuard::workers_of(TenantId tenant) const {
  return size_t(
      std::ranges::count_if(watched_, [&](const auto& entry) { return entry.second.record.tenant_id == tenant; }));
}

// Returns the bound of all workers of the tenant beyond their initial memory; UINT64_MAX: no bound.
uint64_t HostGuard::bound_of(TenantId tenant, size_t workers) const {
  auto found = host_bytes_.find(tenant);
  if (found == host_bytes_.end() || found->second == 0) return UINT64_MAX;
  if (workers == 0) return found->second;
  const uint64_t suspended = settings_.suspended ? settings_.suspended(tenant) : 0;
  return sum(sum(found->second, suspended),
             settings_.slack_bytes + workers * settings_.session_slack_bytes + device_bytes_here_);
}

void HostGuard::suspended_changed(TenantId tenant) {
  if (workers_of(tenant) != 0) bound_group(tenant);
}

void HostGuard::bound_group(TenantId tenant) {
  if (!settings_.groups) return;
  if (auto bounded = settings_.groups->bound(tenants_[tenant].name, bound_of(tenant, workers_of(tenant))); !bounded)
    spdlog::warn("host memory: {}", bounded.error());
}

// A group's sessions share the group's part; without groups, each worker counts by itself.
void HostGuard::share_processors(TenantId tenant) {
  const Known& known = tenants_[tenant];
  const bool served =
      std::ranges::any_of(watched_, [&](const auto& entry) { return entry.second.record.tenant_id == tenant; });
  if (!served) return;
  if (settings_.groups && settings_.groups->weighs()) {
    if (auto weighed = settings_.groups->weigh(known.name, known.service_class); !weighed)
      spdlog::warn("processor time: {}", weighed.error());
    return;
  }
  for (const auto& [number, watched] : watched_) {
    if (watched.record.tenant_id == tenant && watched.process && signal_process(watched.process, 0) == 0)
      set_niceness(watched.record.worker_pid,
                   ::getpriority(PRIO_PROCESS, id_t(::getpid())) + processor_niceness(known.service_class));
  }
}

// --- sessions ------------------------------------------------------------------------------------------------------

tl::expected<void, std::string> HostGuard::attach(const SessionRecord& session, SessionSpec&,
                                                  ipc::SessionDescriptors&) {
  watch(session, OwnedDescriptor(int(::syscall(SYS_pidfd_open, session.worker_pid, 0))),
        own_bytes(session.worker_pid).value_or(0));
  return {};
}

tl::expected<void, std::string> HostGuard::attach_management(const SessionRecord& session, SessionSpec& spec,
                                                             ipc::SessionDescriptors& descriptors) {
  return attach(session, spec, descriptors);
}

void HostGuard::note(const SessionRecord& session, KeptSession& kept) const {
  if (auto found = watched_.find(session.number); found != watched_.end())
    kept.host_before_bytes = found->second.before_bytes;
}

// The process number is safe to use: the pool holds the session's pidfd, and the process is alive.
tl::expected<void, std::string> HostGuard::adopt(const SessionRecord& session, const KeptSession& kept,
                                                 KeptEntry& descriptors) {
  OwnedDescriptor& process = descriptors.descriptors[size_t(KeptDescriptor::process)];
  watch(session, OwnedDescriptor(::fcntl(process.get(), F_DUPFD_CLOEXEC, 0)), kept.host_before_bytes);
  return {};
}

void HostGuard::watch(const SessionRecord& session, OwnedDescriptor process, uint64_t before_bytes) {
  watched_.insert_or_assign(session.number, Watched{.record = session,
                                                    .process = std::move(process),
                                                    .status = ProcessStatus(session.worker_pid),
                                                    .before_bytes = before_bytes});
  // The configuration may lack the tenant of an adopted session.
  tenants_[session.tenant_id] = {session.tenant, session.service_class};
  bound_group(session.tenant_id);
  if (settings_.groups) {
    if (auto joined = settings_.groups->join(session.tenant, session.worker_pid); !joined)
      spdlog::warn("host memory: {}", joined.error());
  }
  const bool weighed = settings_.groups && settings_.groups->weighs();
  if (weighed || processor_niceness(session.service_class) != 0) share_processors(session.tenant_id);
  await_next_poll();
}

void HostGuard::ended(const SessionRecord& session) {
  watched_.erase(session.number);
  if (!settings_.groups) return;
  bool others = std::ranges::any_of(
      watched_, [&](const auto& entry) { return entry.second.record.tenant_id == session.tenant_id; });
  if (others) bound_group(session.tenant_id);
  else settings_.groups->remove(session.tenant);
}

// --- looking -------------------------------------------------------------------------------------------------------

void HostGuard::await_next_poll() {
  if (watched_.empty() || polling_) return;
  polling_ = true;
  timer_.expires_after(settings_.poll);
  timer_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    polling_ = false;
    if (!error) poll();
  }));
}

void HostGuard::poll() {
  struct Tenant {
    uint64_t has = 0, charged = 0;
    size_t workers = 0;
  };
  std::map<TenantId, Tenant> tenants;
  for (auto& [number, watched] : watched_) {
    look_at(watched);
    Tenant& tenant = tenants[watched.record.tenant_id];
    tenant.has += watched.bytes;
    tenant.charged = sum(tenant.charged, watched.charged);
    ++tenant.workers;
  }
  for (auto& [number, watched] : watched_) {
    const Tenant& tenant = tenants[watched.record.tenant_id];
    order(watched, excess(watched.record.tenant_id, tenant.has, tenant.charged));
  }
  for (const auto& [id, tenant] : tenants) {
    if (tenant.has > bound_of(id, tenant.workers)) judge(id);
  }
  judge_threads();
  await_next_poll();
}

void HostGuard::look_at(Watched& watched) {
  const auto figures = watched.status.read();
  if (!figures) return;
  watched.process_bytes = figures->own_bytes;
  watched.bytes = watched.process_bytes - std::min(watched.process_bytes, watched.before_bytes);
  watched.charged = charged(watched.record);
  watched.threads = figures->threads;
}

uint64_t HostGuard::charged(const SessionRecord& session) const {
  uint64_t bytes = settings_.charged ? settings_.charged(session) : 0;
  if (!settings_.charged_on_device) return bytes;
  for (scheduler::DeviceIndex device : session.devices) {
    if (devices_here_.contains(device)) bytes = sum(bytes, settings_.charged_on_device(session, device));
  }
  return bytes;
}

// A worker reports its own charge, so the charge counts at most as much as the tenant's limit.
uint64_t HostGuard::excess(TenantId tenant, uint64_t has, uint64_t charged) const {
  auto bound = host_bytes_.find(tenant);
  if (bound != host_bytes_.end() && bound->second) charged = std::min(charged, sum(bound->second, device_bytes_here_));
  return has - std::min(has, charged);
}

void HostGuard::order(Watched& watched, uint64_t excess_bytes) {
  if (settings_.machine_bytes == 0) return;
  const int order = kill_order({.machine_bytes = settings_.machine_bytes,
                                .process_bytes = watched.process_bytes,
                                .counted_bytes = std::max(watched.process_bytes, watched.charged),
                                .excess_bytes = excess_bytes,
                                .slack_bytes = settings_.slack_bytes});
  if (order == std::exchange(watched.order, order)) return;
  if (watched.process && signal_process(watched.process, 0) == 0) set_kill_order(watched.record.worker_pid, order);
}

// The tenant exceeds its bound: its largest session ends, one at each check.
void HostGuard::judge(TenantId tenant) {
  Watched* largest = nullptr;
  uint64_t all = 0;
  for (auto& [number, watched] : watched_) {
    if (watched.record.tenant_id != tenant) continue;
    all += watched.bytes;
    if (!largest || watched.bytes > largest->bytes) largest = &watched;
  }
  uint64_t bound = bound_of(tenant, workers_of(tenant));
  end(*largest,
      fmt::format("it has {} MiB of the server's own memory, and its tenant may have {} MiB (host_memory)",
                  largest->bytes / kMiB, bound / kMiB),
      all / kKilledAtTimes > bound);
}

// One worker at a time with more threads than a worker ever starts.
void HostGuard::judge_threads() {
  auto most = std::ranges::max_element(watched_, {}, [](const auto& entry) { return entry.second.threads; });
  if (most == watched_.end() || most->second.threads <= settings_.threads_max) return;
  Watched& watched = most->second;
  end(watched,
      fmt::format("its worker has {} threads, and no session needs more than {}", watched.threads,
                  settings_.threads_max),
      watched.threads / kKilledAtTimes > settings_.threads_max);
}

void HostGuard::end(Watched& watched, const std::string& why, bool at_once) {
  if (at_once) signal_process(watched.process, SIGKILL);
  if (std::exchange(watched.notified_to_end, true)) return;
  spdlog::warn("{}: ended: {}", label_of(watched.record), why);
  // May call ended(), which removes the entry.
  control_.stop(watched.record.number, why);
}

}  // namespace gpuwire::server
