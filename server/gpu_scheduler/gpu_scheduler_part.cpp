#include "server/gpu_scheduler/gpu_scheduler_part.hpp"

#include <algorithm>
#include <utility>

#include <boost/asio/post.hpp>
#include <spdlog/spdlog.h>

namespace gpuwire::server {

namespace {

// The caller queries the figures of many sessions one after the other.
constexpr std::chrono::nanoseconds kMetricsFresh = 20ms;

constexpr const char* kRegimeNames[] = {"free", "co-run", "lease"};
constexpr const char* kClassNames[] = {"realtime", "interactive", "batch", "scavenger"};
constexpr const char* kHoldNames[] = {"", "turn", "class", "drain", "gang", "no-show", "sibling"};
static_assert(std::size(kHoldNames) == size_t(scheduler::Hold::sibling) + 1);
static_assert(std::size(kClassNames) == scheduler::kServiceClasses);

uint64_t count(std::chrono::nanoseconds time) { return uint64_t(std::max<int64_t>(time.count(), 0)); }

// A session without a placement shares the first device with all others.
std::span<const scheduler::DeviceIndex> placed_on(const SessionRecord& session) {
  static constexpr scheduler::DeviceIndex kFirst[] = {0};
  return session.devices.empty() ? std::span<const scheduler::DeviceIndex>(kFirst) : std::span(session.devices);
}

scheduler::TenantPolicy policy_of(const TenantConfiguration& settings) {
  return {.service_class = settings.service_class,
          .weight = settings.weight,
          .share_max = settings.share_max,
          .share_min = settings.share_min};
}

SessionLimits limits_of(const TenantConfiguration& settings) {
  // A limit without a waiting session does not apply.
  auto ms = [](uint64_t value) {
    return std::chrono::milliseconds(int64_t(std::min<uint64_t>(value, uint64_t(365) * 24 * 3600 * 1000)));
  };
  return {.kernel_time_max = ms(settings.kernel_time_max_ms), .idle_time_max = ms(settings.idle_time_max_ms)};
}

}  // namespace

GpuSchedulerPart::GpuSchedulerPart(boost::asio::io_context& io, SessionControl& control, GpuSchedulerSettings settings)
    : io_(io),
      control_(control),
      scheduler_(std::move(settings),
                 {.warn =
                      [this](scheduler::SessionId session, std::string text) {
                        boost::asio::post(io_, lifetime_.guard([this, session, text] { warn(session, text); }));
                      },
                  .end =
                      [this](scheduler::SessionId session, StopOrder order) {
                        boost::asio::post(io_, lifetime_.guard([this, session, order] { end(session, order); }));
                      }}) {}

void GpuSchedulerPart::warn(scheduler::SessionId session, const std::string& text) {
  spdlog::warn("session {}: {}", uint64_t(session), text);
  control_.warn(session, text);
}

void GpuSchedulerPart::end(scheduler::SessionId session, const StopOrder& order) {
  spdlog::warn("session {} is ended: {}", uint64_t(session), order.why);
  control_.stop(session, order);
}

void GpuSchedulerPart::tenants_changed(const TenantDirectory& tenants) {
  tenants_.clear();
  for (const Tenant& tenant : tenants.all()) {
    tenants_[tenant.settings.name] = tenant.id;
    scheduler_.set_tenant(tenant.id, policy_of(tenant.settings), limits_of(tenant.settings));
  }
}

tl::expected<void, std::string> GpuSchedulerPart::attach(const SessionRecord& session, SessionSpec&,
                                                         ipc::SessionDescriptors& descriptors) {
  auto ends = scheduler_.add(session.number, session.tenant_id, placed_on(session));
  if (!ends) return tl::unexpected(ends.error());
  descriptors.session_page = std::move(ends->page);
  descriptors.doorbell = std::move(ends->doorbell);
  return {};
}

void GpuSchedulerPart::note(const SessionRecord& session, KeptSession& kept) const {
  kept.page_began_ns = scheduler_.began(session.number).count();
}

tl::expected<void, std::string> GpuSchedulerPart::adopt(const SessionRecord& session, const KeptSession& kept,
                                                        KeptEntry& descriptors) {
  if (session.management) return {};
  auto take = [&](KeptDescriptor which) { return std::move(descriptors.descriptors[size_t(which)]); };
  return scheduler_.adopt(session.number, session.tenant_id, placed_on(session),
                          {take(KeptDescriptor::session_page), take(KeptDescriptor::doorbell)},
                          PageTime(kept.page_began_ns));
}

void GpuSchedulerPart::ended(const SessionRecord& session) { scheduler_.remove(session.number); }

// --- figures -------------------------------------------------------------------------------------------------------

const GpuSchedulerSnapshot& GpuSchedulerPart::figures() {
  PageTime now = page_now();
  if (now - taken_at_ > kMetricsFresh) {
    taken_ = scheduler_.snapshot();
    taken_at_ = now;
  }
  return taken_;
}

std::optional<std::chrono::nanoseconds> GpuSchedulerPart::charged(scheduler::SessionId session) {
  const auto& all = figures().sessions;
  auto found = std::ranges::find(all, session, &GpuSchedulerSnapshot::Session::id);
  return found == all.end() ? std::nullopt : std::optional(found->charged);
}

std::optional<std::chrono::nanoseconds> GpuSchedulerPart::idle(scheduler::SessionId session) {
  const auto& all = figures().sessions;
  auto found = std::ranges::find(all, session, &GpuSchedulerSnapshot::Session::id);
  return found == all.end() ? std::nullopt : found->idle;
}

void GpuSchedulerPart::add(const SessionRecord& session, SessionMetrics& figures) {
  const auto& all = this->figures().sessions;
  auto found = std::ranges::find(all, session.number, &GpuSchedulerSnapshot::Session::id);
  if (found == all.end()) return;
  figures.gpu_time_ns = count(found->charged);
  figures.gate_open = found->gate.open;
  figures.holds_lease = found->account.holds_lease;
  figures.leases = found->account.leases;
  figures.held = kHoldNames[size_t(found->account.hold)];
  figures.held_by = uint64_t(found->account.held_by);
  figures.in_flight_ns = count(found->in_flight);
  figures.gate_waits = found->waits;
  figures.gate_wait_ns = count(found->waited);
  figures.bytes_in = found->bytes_in;
  figures.bytes_out = found->bytes_out;
  figures.replies = found->replies;
  figures.chunks_found = found->chunks_found;
  figures.chunk_bytes_found = found->chunk_bytes_found;
  figures.chunk_bytes_kept = found->chunk_bytes_kept;
  figures.round_trip_us = found->round_trip_us;
  figures.warning = found->warning;
}

void GpuSchedulerPart::add(Snapshot& snapshot) {
  const GpuSchedulerSnapshot& own = figures();
  for (const GpuSchedulerSnapshot::Device& device : own.devices) {
    auto shown = std::ranges::find(snapshot.devices, device.index, &DeviceMetrics::index);
    if (shown == snapshot.devices.end()) continue;
    shown->regime = kRegimeNames[size_t(device.regime)];
    for (size_t i = 0; i < std::size(kRegimeNames); ++i) shown->regime_ns[kRegimeNames[i]] = count(device.in_regime[i]);
    shown->system_time_ns = count(device.system_time);
    shown->hand_overs = device.hand_overs;
    shown->side_by_side = {.trials = device.co_run.trials,
                           .turns = device.co_run.turns,
                           .together = device.co_run.side_by_side,
                           .expected = device.co_run.expected};
    for (size_t i = 0; i < std::size(kClassNames); ++i) {
      const GpuSchedulerSnapshot::Drains& drains = device.drains[i];
      if (std::ranges::all_of(drains.counts, [](uint64_t number) { return number == 0; })) continue;
      shown->drain_us[kClassNames[i]] = {.bounds = {kDrainBoundsUs.begin(), kDrainBoundsUs.end()},
                                         .counts = {drains.counts.begin(), drains.counts.end()},
                                         .sum = drains.sum_us};
    }
  }
  for (TenantMetrics& tenant : snapshot.tenants) {
    auto known = tenants_.find(tenant.name);
    if (known == tenants_.end()) continue;
    for (TenantDeviceMetrics& on : tenant.devices) {
      GpuScheduler::TenantTimes times = scheduler_.times(known->second, on.device);
      on.gpu_time_ns = count(times.charged);
      on.granted_ns = count(times.granted);
      auto shown = std::ranges::find(snapshot.devices, on.device, &DeviceMetrics::index);
      if (shown != snapshot.devices.end()) shown->gpu_time_ns += on.gpu_time_ns;
    }
  }
}

}  // namespace gpuwire::server
