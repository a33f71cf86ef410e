#include "server/control/view/metrics_view.hpp"

#include <algorithm>
#include <array>

namespace gpuwire::server {
namespace {

// A counter decreases only when its part of the server was restarted.
uint64_t grown(uint64_t before, uint64_t after) { return after > before ? after - before : 0; }

uint64_t gpu_time_ns(const TenantMetrics& tenant) {
  uint64_t sum = 0;
  for (const TenantDeviceMetrics& device : tenant.devices) sum += device.gpu_time_ns;
  return sum;
}

uint64_t memory_of(const SessionMetrics& session) {
  uint64_t sum = 0;
  for (const SessionDeviceMetrics& device : session.devices) sum += device.memory_used_bytes;
  return sum;
}

template <class T, class Same>
const T& find_or_empty(const std::vector<T>& all, Same same) {
  static const T kNone{};
  auto found = std::find_if(all.begin(), all.end(), same);
  return found == all.end() ? kNone : *found;
}

}  // namespace

std::optional<SortKey> sort_key_named(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, SortKey>, 5> kNames{{{"gpu", SortKey::gpu},
                                                                        {"memory", SortKey::memory},
                                                                        {"link", SortKey::link},
                                                                        {"tenant", SortKey::tenant},
                                                                        {"id", SortKey::id}}};
  for (const auto& [word, key] : kNames)
    if (word == name) return key;
  return std::nullopt;
}

Interval::Interval(const Snapshot& before, const Snapshot& after)
    : before_(before), after_(after), seconds_(double(grown(before.taken_ns, after.taken_ns)) / 1e9) {}

double Interval::rate(uint64_t before, uint64_t after) const {
  return seconds_ > 0 ? double(grown(before, after)) / seconds_ : 0;
}

const SessionMetrics& Interval::earlier(const SessionMetrics& session) const {
  return find_or_empty(before_.sessions, [&](const SessionMetrics& one) { return one.id == session.id; });
}
const TenantMetrics& Interval::earlier(const TenantMetrics& tenant) const {
  return find_or_empty(before_.tenants, [&](const TenantMetrics& one) { return one.name == tenant.name; });
}
const DeviceMetrics& Interval::earlier(const DeviceMetrics& device) const {
  return find_or_empty(before_.devices, [&](const DeviceMetrics& one) { return one.index == device.index; });
}

double Interval::share(uint64_t before_ns, uint64_t after_ns, size_t gpus) const {
  return std::min(rate(before_ns, after_ns) / 1e9, double(std::max<size_t>(gpus, 1)));
}

double Interval::gpu_share(const DeviceMetrics& device) const {
  return share(earlier(device).gpu_time_ns, device.gpu_time_ns, 1);
}
double Interval::system_share(const DeviceMetrics& device) const {
  return share(earlier(device).system_time_ns, device.system_time_ns, 1);
}
double Interval::gpu_share(const TenantMetrics& tenant) const {
  return share(gpu_time_ns(earlier(tenant)), gpu_time_ns(tenant), after_.devices.size());
}
double Interval::gpu_share(const SessionMetrics& session) const {
  return share(earlier(session).gpu_time_ns, session.gpu_time_ns, session.devices.size());
}
double Interval::gate_wait_share(const SessionMetrics& session) const {
  return share(earlier(session).gate_wait_ns, session.gate_wait_ns, 1);
}
double Interval::bytes_in_per_s(const SessionMetrics& session) const {
  return rate(earlier(session).bytes_in, session.bytes_in);
}
double Interval::bytes_out_per_s(const SessionMetrics& session) const {
  return rate(earlier(session).bytes_out, session.bytes_out);
}
double Interval::replies_per_s(const SessionMetrics& session) const {
  return rate(earlier(session).replies, session.replies);
}
double Interval::bytes_in_per_s(const TenantMetrics& tenant) const {
  return rate(earlier(tenant).bytes_in, tenant.bytes_in);
}
double Interval::bytes_out_per_s(const TenantMetrics& tenant) const {
  return rate(earlier(tenant).bytes_out, tenant.bytes_out);
}

double gpu_share_since_start(const SessionMetrics& session, const Snapshot& snapshot) {
  double seconds = snapshot.taken_unix_s - session.since_unix_s;
  if (session.place != 0 || seconds <= 0) return 0;
  return std::min(double(session.gpu_time_ns) / 1e9 / seconds, double(std::max<size_t>(session.devices.size(), 1)));
}

double gpu_share_since_start(const TenantMetrics& tenant, const Snapshot& snapshot) {
  const ServerMetrics& server = snapshot.server;
  const double since = server.counted_since_unix_s > 0 ? server.counted_since_unix_s : server.started_unix_s;
  const double seconds = snapshot.taken_unix_s - since;
  if (seconds <= 0) return 0;
  return std::min(double(gpu_time_ns(tenant)) / 1e9 / seconds, double(std::max<size_t>(snapshot.devices.size(), 1)));
}

std::vector<size_t> display_order(const Interval& interval, SortKey sort) {
  const auto& sessions = interval.now().sessions;
  std::vector<size_t> order(sessions.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  auto weight = [&](size_t i) {
    const SessionMetrics& session = sessions[i];
    switch (sort) {
      case SortKey::gpu: return interval.gpu_share(session);
      case SortKey::memory: return double(memory_of(session));
      case SortKey::link: return interval.bytes_in_per_s(session) + interval.bytes_out_per_s(session);
      case SortKey::tenant:
      case SortKey::id: return 0.0;
    }
    return 0.0;
  };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    // Waiting programs come last, in the order of the queue.
    if ((sessions[a].place == 0) != (sessions[b].place == 0)) return sessions[a].place == 0;
    if (sessions[a].place != sessions[b].place) return sessions[a].place < sessions[b].place;
    if (sort == SortKey::tenant && sessions[a].tenant != sessions[b].tenant)
      return sessions[a].tenant < sessions[b].tenant;
    if (sort == SortKey::tenant && sessions[a].user != sessions[b].user) return sessions[a].user < sessions[b].user;
    return weight(a) > weight(b);
  });
  return order;
}

std::optional<double> identity_expires_unix_s(const Snapshot& snapshot, const std::string& tenant,
                                              const std::string& user) {
  std::optional<double> latest;
  for (const CertificateMetrics& one : snapshot.server.certificates)
    if (one.of == "tenant" && one.tenant == tenant && one.user == user)
      latest = std::max(latest.value_or(one.expires_unix_s), one.expires_unix_s);
  return latest;
}

Json tenant_json(const Snapshot& snapshot, const std::string& tenant, const std::string& user) {
  Json shown = Json::object();
  Snapshot seen = snapshot;
  if (!user.empty())
    for (TenantMetrics& one : seen.tenants)
      std::erase_if(one.users, [&](const UserMetrics& other) { return other.name != user; });
  Json all = to_json(seen);
  for (Json& one : all["tenants"])
    if (one.value("name", std::string()) == tenant) shown = std::move(one);
  if (!user.empty()) shown["user"] = user;
  shown["gpus_drained"] = Json::array();
  for (const DeviceMetrics& device : snapshot.devices)
    if (!device.drain.empty()) shown["gpus_drained"].push_back(device.index);
  if (const auto ends_unix_s = identity_expires_unix_s(snapshot, tenant, user))
    shown["identity_expires_unix_s"] = *ends_unix_s;
  return shown;
}

Json top_json(const Interval& interval, SortKey sort) {
  const Snapshot& now = interval.now();
  Json json = to_json(now);
  json["interval_s"] = interval.seconds();
  for (size_t i = 0; i < now.devices.size(); ++i) {
    json["devices"][i]["gpu_share"] = interval.gpu_share(now.devices[i]);
    json["devices"][i]["system_share"] = interval.system_share(now.devices[i]);
  }
  for (size_t i = 0; i < now.tenants.size(); ++i) {
    Json& tenant = json["tenants"][i];
    tenant["gpu_share"] = interval.gpu_share(now.tenants[i]);
    tenant["gpu_share_since_start"] = gpu_share_since_start(now.tenants[i], now);
    tenant["bytes_in_per_s"] = interval.bytes_in_per_s(now.tenants[i]);
    tenant["bytes_out_per_s"] = interval.bytes_out_per_s(now.tenants[i]);
  }
  Json sessions = Json::array();
  for (size_t i : display_order(interval, sort)) {
    Json& session = json["sessions"][i];
    session["gpu_share"] = interval.gpu_share(now.sessions[i]);
    session["gpu_share_since_start"] = gpu_share_since_start(now.sessions[i], now);
    session["gate_wait_share"] = interval.gate_wait_share(now.sessions[i]);
    session["bytes_in_per_s"] = interval.bytes_in_per_s(now.sessions[i]);
    session["bytes_out_per_s"] = interval.bytes_out_per_s(now.sessions[i]);
    session["replies_per_s"] = interval.replies_per_s(now.sessions[i]);
    sessions.push_back(session);
  }
  json["sessions"] = std::move(sessions);
  return json;
}

}  // namespace gpuwire::server
