#include "server/control/kept_totals.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "protocol/units/json.hpp"
#include "server/broker/keeper/kept_session.hpp"
#include "server/control/client/metrics_json.hpp"
#include "server/ipc/limits.hpp"

namespace gpuwire::server {
namespace {

std::string text_of(Snapshot one) { return dump(to_json(one)); }

// The next server determines present values, limits and settings itself.
TenantMetrics total_of(const TenantMetrics& tenant, const Snapshot& snapshot) {
  TenantMetrics total{.name = tenant.name,
                      .chunks_found = tenant.chunks_found,
                      .chunk_bytes_found = tenant.chunk_bytes_found,
                      .chunk_bytes_kept = tenant.chunk_bytes_kept,
                      .bytes_in = tenant.bytes_in,
                      .bytes_out = tenant.bytes_out,
                      .replies = tenant.replies,
                      .begun = tenant.begun,
                      .worker_waits = tenant.worker_waits,
                      .ended = tenant.ended,
                      .refused = tenant.refused,
                      .queue_wait_s = tenant.queue_wait_s};
  for (const TenantDeviceMetrics& device : tenant.devices) {
    if (device.gpu_time_ns || device.granted_ns)
      total.devices.push_back(
          {.device = device.device, .gpu_time_ns = device.gpu_time_ns, .granted_ns = device.granted_ns});
  }
  // The counters of a running session are in its page.
  for (const SessionMetrics& session : snapshot.sessions) {
    if (session.tenant != tenant.name) continue;
    total.bytes_in -= std::min(total.bytes_in, session.bytes_in);
    total.bytes_out -= std::min(total.bytes_out, session.bytes_out);
    total.replies -= std::min(total.replies, session.replies);
    total.chunks_found -= std::min(total.chunks_found, session.chunks_found);
    total.chunk_bytes_found -= std::min(total.chunk_bytes_found, session.chunk_bytes_found);
    total.chunk_bytes_kept -= std::min(total.chunk_bytes_kept, session.chunk_bytes_kept);
  }
  return total;
}

DeviceMetrics total_of(const DeviceMetrics& device) {
  return {.index = device.index,
          .name = device.name,
          .regime_ns = device.regime_ns,
          .gpu_time_ns = device.gpu_time_ns,
          .system_time_ns = device.system_time_ns,
          .hand_overs = device.hand_overs,
          .drain_us = device.drain_us};
}

}  // namespace

std::map<std::string, std::string> totals_of(const Snapshot& snapshot) {
  std::map<std::string, std::string> texts;
  const TenantMetrics nothing;
  for (const TenantMetrics& tenant : snapshot.tenants) {
    Snapshot one{.tenants = {total_of(tenant, snapshot)}};
    TenantMetrics bare = one.tenants.front();
    bare.name.clear();
    if (bare.queue_wait_s.total() == 0) bare.queue_wait_s = {};
    if (bare != nothing) texts[kept_total_name("tenant/" + tenant.name)] = text_of(std::move(one));
  }
  for (const DeviceMetrics& device : snapshot.devices) {
    const bool used = device.gpu_time_ns || device.system_time_ns || device.hand_overs;
    if (used) texts[kept_total_name(fmt::format("device/{}", device.index))] = text_of({.devices = {total_of(device)}});
  }
  if (!texts.empty() && snapshot.server.counted_since_unix_s > 0)
    texts[kept_total_name("since")] =
        text_of({.server = {.counted_since_unix_s = snapshot.server.counted_since_unix_s}});
  if (!snapshot.refused.empty()) texts[kept_total_name("others")] = text_of({.refused = snapshot.refused});
  return texts;
}

bool add_total(const std::string& text, Snapshot& totals) {
  Json json = parse_ordered_json(text);
  if (json.is_discarded()) return false;
  auto one = snapshot_from_json(json);
  if (!one) return false;
  std::ranges::move(one->tenants, std::back_inserter(totals.tenants));
  std::ranges::move(one->devices, std::back_inserter(totals.devices));
  totals.refused.merge(one->refused);
  if (one->server.counted_since_unix_s > 0) totals.server.counted_since_unix_s = one->server.counted_since_unix_s;
  return true;
}

KeptTotals::KeptTotals(boost::asio::io_context& io, SessionRegistry& registry, const Monitor& monitor,
                       EntryStore& store)
    : registry_(registry), monitor_(monitor), store_(store), timer_(io) {
  registry.observe([this](const SessionEvent&) { poll_later(); });
}

void KeptTotals::poll_later() {
  if (std::exchange(polling_, true)) return;
  timer_.expires_after(kTotalsNoteTime);
  timer_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    polling_ = false;
    if (error) return;
    note(monitor_.snapshot());
    if (!registry_.all().empty()) poll_later();
  }));
}

void KeptTotals::note(const Snapshot& snapshot) {
  for (auto& [name, text] : totals_of(snapshot)) {
    std::string& noted = noted_[name];
    if (noted == text) continue;
    if (text.size() > ipc::kEntryTextBytesMax || name.size() > ipc::kEntryNameBytesMax) {
      if (noted.empty()) spdlog::warn("{} is too long to be kept for the next server", name);
      continue;
    }
    const bool first = noted.empty();
    noted = text;
    if (first)
      store_.put({.session = false, .awaited = true, .name = name, .text = std::move(text), .descriptors = {}});
    else store_.note(name, std::move(text));
  }
}

void KeptTotals::forget() {
  timer_.cancel();
  for (const auto& [name, text] : noted_) store_.remove(name);
  noted_.clear();
}

}  // namespace gpuwire::server
