#include "server/host_guard/host_guard.hpp"

#include <algorithm>
#include <csignal>

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "server/base/machine.hpp"

namespace gpuwire::server {
namespace {

using scheduler::TenantId;

constexpr uint64_t kMiB = 1u << 20;
// How the software device names itself (server/software_device/driver/device/device.cpp).
constexpr const char* kSoftwareDeviceName = "gpuwire software device";

uint64_t sum(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

int signal_process(const OwnedDescriptor& process, int number) {
  return int(::syscall(SYS_pidfd_send_signal, process.get(), number, nullptr, 0));
}

}  // namespace

HostGuard::HostGuard(boost::asio::io_context& io, SessionControl& control, Settings settings)
    : control_(control), settings_(std::move(settings)), timer_(io) {}

void HostGuard::devices_known(std::span<const ServerDevice> devices) {
  for (const ServerDevice& device : devices) {
    if (device.name == kSoftwareDeviceName) device_bytes_here_ += device.bytes;
  }
}

void HostGuard::tenants_changed(const TenantDirectory& tenants) {
  for (const Tenant& tenant : tenants.all()) {
    uint64_t configured = tenant.settings.host_memory_bytes;
    host_bytes_[tenant.id] = configured ? configured : settings_.host_bytes;
  }
  for (const auto& [tenant, bytes] : host_bytes_) {
    if (std::ranges::any_of(watched_, [&](const auto& entry) { return entry.second.record.tenant_id == tenant; }))
      bound_group(tenant);
  }
}

// What all workers of the tenant may have beyond what they began with; UINT64_MAX: no bound.
uint64_t HostGuard::bound_of(TenantId tenant) const {
  auto found = host_bytes_.find(tenant);
  if (found == host_bytes_.end() || found->second == 0) return UINT64_MAX;
  auto workers = uint64_t(
      std::ranges::count_if(watched_, [&](const auto& entry) { return entry.second.record.tenant_id == tenant; }));
  return sum(found->second, workers * settings_.slack_bytes + device_bytes_here_ * std::min<uint64_t>(workers, 1));
}

void HostGuard::bound_group(TenantId tenant) {
  uint64_t bytes = bound_of(tenant);
  if (!settings_.groups || bytes == UINT64_MAX) return;
  if (auto bounded = settings_.groups->bound(uint64_t(tenant), bytes); !bounded)
    spdlog::warn("host memory: {}", bounded.error());
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

// By number only after the process is known to be the one that it was: the pool holds the session's pidfd, and it
// lives.
tl::expected<void, std::string> HostGuard::adopt(const SessionRecord& session, const KeptSession& kept,
                                                 KeptEntry& descriptors) {
  OwnedDescriptor& process = descriptors.descriptors[size_t(KeptDescriptor::process)];
  watch(session, OwnedDescriptor(::fcntl(process.get(), F_DUPFD_CLOEXEC, 0)), kept.host_before_bytes);
  return {};
}

void HostGuard::watch(const SessionRecord& session, OwnedDescriptor process, uint64_t before_bytes) {
  watched_[session.number] = {.record = session, .process = std::move(process), .before_bytes = before_bytes};
  if (settings_.groups && bound_of(session.tenant_id) != UINT64_MAX) {
    bound_group(session.tenant_id);
    if (auto joined = settings_.groups->join(uint64_t(session.tenant_id), session.worker_pid); !joined)
      spdlog::warn("host memory: {}", joined.error());
  }
  await_next_look();
}

void HostGuard::ended(const SessionRecord& session) {
  watched_.erase(session.number);
  if (!settings_.groups) return;
  bool others = std::ranges::any_of(
      watched_, [&](const auto& entry) { return entry.second.record.tenant_id == session.tenant_id; });
  if (others) bound_group(session.tenant_id);
  else settings_.groups->remove(uint64_t(session.tenant_id));
}

// --- looking -------------------------------------------------------------------------------------------------------

void HostGuard::await_next_look() {
  if (watched_.empty() || looking_) return;
  looking_ = true;
  timer_.expires_after(settings_.look);
  timer_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    looking_ = false;
    if (!error) look();
  }));
}

void HostGuard::look() {
  std::map<TenantId, uint64_t> tenants;
  for (auto& [number, watched] : watched_) {
    look_at(watched);
    tenants[watched.record.tenant_id] += watched.bytes;
  }
  for (const auto& [tenant, bytes] : tenants) {
    if (bytes > bound_of(tenant)) judge(tenant);
  }
  judge_threads();
  await_next_look();
}

void HostGuard::look_at(Watched& watched) {
  if (!watched.process || signal_process(watched.process, 0) != 0) return;
  uint64_t has = own_bytes(watched.record.worker_pid).value_or(0);
  watched.bytes = has - std::min(has, watched.before_bytes);
  watched.threads = thread_count(watched.record.worker_pid).value_or(0);
  if (settings_.machine_bytes == 0) return;
  // What the driver has pinned for the worker is in no figure of the kernel's.
  uint64_t counts = std::max(has, settings_.charged ? settings_.charged(watched.record) : 0);
  double part = std::min(1.0, double(counts) / double(settings_.machine_bytes));
  set_kill_order(watched.record.worker_pid, kKillOrderOfWorkers + int(part * (kKillOrderMax - kKillOrderOfWorkers)));
}

// The tenant has more than it may: its largest session goes, one at a look.
void HostGuard::judge(TenantId tenant) {
  Watched* largest = nullptr;
  uint64_t all = 0;
  for (auto& [number, watched] : watched_) {
    if (watched.record.tenant_id != tenant) continue;
    all += watched.bytes;
    if (!largest || watched.bytes > largest->bytes) largest = &watched;
  }
  uint64_t bound = bound_of(tenant);
  end(*largest,
      fmt::format("it has {} MiB of the server's own memory, and its tenant may have {} MiB (host_memory)",
                  largest->bytes / kMiB, bound / kMiB),
      all / kKilledAtTimes > bound);
}

// Whoever has more than a worker ever starts, one at a look.
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
  if (std::exchange(watched.told_to_end, true)) return;
  spdlog::warn("{}: ended: {}", label_of(watched.record), why);
  // May call ended(), which removes the entry.
  control_.stop(watched.record.number, why);
}

}  // namespace gpuwire::server
