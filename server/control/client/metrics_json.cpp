#include "server/control/client/metrics_json.hpp"

#include <concepts>
#include <type_traits>

#include "protocol/units/json.hpp"

namespace gpuwire::server {
namespace {

// One description of each struct's members serves both directions: `visit` is called with each name and field.
template <class T, class F>
concept Is = std::same_as<std::remove_const_t<T>, F>;

void each_field(Is<HistogramMetrics> auto& f, auto&& visit) {
  visit("bounds", f.bounds), visit("counts", f.counts), visit("sum", f.sum);
}
void each_field(Is<CertificateMetrics> auto& f, auto&& visit) {
  visit("of", f.of), visit("tenant", f.tenant), visit("expires_unix_s", f.expires_unix_s), visit("warning", f.warning);
  visit("user", f.user), visit("kind", f.kind), visit("id", f.id), visit("renewed", f.renewed);
}
void each_field(Is<ServerMetrics> auto& f, auto&& visit) {
  visit("release", f.release), visit("pid", f.pid), visit("started_unix_s", f.started_unix_s),
      visit("counted_since_unix_s", f.counted_since_unix_s), visit("devices", f.devices), visit("listen", f.listen);
  visit("sessions_max", f.sessions_max), visit("draining", f.draining), visit("sessions_left_out", f.sessions_left_out);
  visit("audit_lines_lost", f.audit_lines_lost), visit("certificates", f.certificates),
      visit("certificates_left_out", f.certificates_left_out);
}
void each_field(Is<SideBySideMetrics> auto& f, auto&& visit) {
  visit("trials", f.trials), visit("turns", f.turns), visit("together", f.together), visit("expected", f.expected);
}
void each_field(Is<DeviceMetrics> auto& f, auto&& visit) {
  visit("index", f.index), visit("name", f.name), visit("memory_bytes", f.memory_bytes),
      visit("memory_used_bytes", f.memory_used_bytes), visit("memory_reserved_bytes", f.memory_reserved_bytes),
      visit("memory_held_bytes", f.memory_held_bytes);
  visit("prewarmed_workers", f.prewarmed_workers), visit("prewarmed_memory_bytes", f.prewarmed_memory_bytes);
  visit("sessions", f.sessions), visit("drain", f.drain), visit("regime", f.regime), visit("regime_ns", f.regime_ns),
      visit("gpu_time_ns", f.gpu_time_ns);
  visit("system_time_ns", f.system_time_ns), visit("hand_overs", f.hand_overs), visit("side_by_side", f.side_by_side);
  visit("drain_us", f.drain_us);
}
void each_field(Is<TenantDeviceMetrics> auto& f, auto&& visit) {
  visit("device", f.device), visit("gpu_time_ns", f.gpu_time_ns), visit("granted_ns", f.granted_ns);
  visit("memory_used_bytes", f.memory_used_bytes), visit("memory_limit_bytes", f.memory_limit_bytes),
      visit("memory_guaranteed_bytes", f.memory_guaranteed_bytes);
  visit("memory_reserved_bytes", f.memory_reserved_bytes), visit("memory_held_bytes", f.memory_held_bytes);
  visit("memory_allowance_bytes", f.memory_allowance_bytes);
}
void each_field(Is<UserMetrics> auto& f, auto&& visit) {
  visit("name", f.name), visit("sessions", f.sessions), visit("sessions_max", f.sessions_max);
  visit("budget_ns", f.budget_ns), visit("budget_used_ns", f.budget_used_ns), visit("budget_hard", f.budget_hard);
  visit("memory_used_bytes", f.memory_used_bytes), visit("memory_limit_bytes", f.memory_limit_bytes);
}
void each_field(Is<TenantMetrics> auto& f, auto&& visit) {
  visit("name", f.name), visit("class", f.service_class), visit("weight", f.weight),
      visit("sessions_max", f.sessions_max), visit("sessions", f.sessions);
  visit("budget_ns", f.budget_ns), visit("budget_used_ns", f.budget_used_ns), visit("budget_hard", f.budget_hard),
      visit("users", f.users);
  visit("devices", f.devices), visit("host_memory_used_bytes", f.host_memory_used_bytes),
      visit("host_memory_limit_bytes", f.host_memory_limit_bytes);
  visit("chunk_memory_bytes", f.chunk_memory_bytes), visit("chunk_memory_limit_bytes", f.chunk_memory_limit_bytes);
  visit("chunk_disk_bytes", f.chunk_disk_bytes), visit("chunk_disk_limit_bytes", f.chunk_disk_limit_bytes);
  visit("chunks_found", f.chunks_found), visit("chunk_bytes_found", f.chunk_bytes_found),
      visit("chunk_bytes_kept", f.chunk_bytes_kept);
  visit("bytes_in", f.bytes_in), visit("bytes_out", f.bytes_out), visit("replies", f.replies), visit("begun", f.begun),
      visit("worker_waits", f.worker_waits), visit("ended", f.ended);
  visit("refused", f.refused), visit("queue_wait_s", f.queue_wait_s);
}
void each_field(Is<SessionDeviceMetrics> auto& f, auto&& visit) {
  visit("device", f.device), visit("memory_used_bytes", f.memory_used_bytes),
      visit("memory_peak_bytes", f.memory_peak_bytes), visit("memory_reserved_bytes", f.memory_reserved_bytes);
}
void each_field(Is<SessionMetrics> auto& f, auto&& visit) {
  visit("id", f.id), visit("tenant", f.tenant), visit("user", f.user), visit("class", f.service_class),
      visit("state", f.state), visit("suspension", f.suspension), visit("suspended_bytes", f.suspended_bytes),
      visit("suspended_since_unix_s", f.suspended_since_unix_s), visit("detached_left_s", f.detached_left_s),
      visit("peer", f.peer), visit("program", f.program);
  visit("host", f.host), visit("security", f.security), visit("credential", f.credential),
      visit("client_pid", f.client_pid), visit("worker_pid", f.worker_pid);
  visit("since_unix_s", f.since_unix_s), visit("place", f.place), visit("waits_for", f.waits_for),
      visit("start_in_s", f.start_in_s), visit("devices", f.devices);
  visit("memory_limit_bytes", f.memory_limit_bytes), visit("gpu_time_ns", f.gpu_time_ns),
      visit("gate_open", f.gate_open);
  visit("holds_lease", f.holds_lease), visit("leases", f.leases), visit("held", f.held), visit("held_by", f.held_by),
      visit("in_flight_ns", f.in_flight_ns), visit("gate_waits", f.gate_waits), visit("gate_wait_ns", f.gate_wait_ns);
  visit("bytes_in", f.bytes_in), visit("bytes_out", f.bytes_out), visit("replies", f.replies),
      visit("round_trip_us", f.round_trip_us);
  visit("chunks_found", f.chunks_found), visit("chunk_bytes_found", f.chunk_bytes_found),
      visit("chunk_bytes_kept", f.chunk_bytes_kept);
  visit("warning", f.warning);
}
void each_field(Is<Snapshot> auto& f, auto&& visit) {
  visit("taken_ns", f.taken_ns), visit("taken_unix_s", f.taken_unix_s), visit("server", f.server),
      visit("devices", f.devices);
  visit("tenants", f.tenants), visit("sessions", f.sessions), visit("refused", f.refused);
}

struct Ignore {
  void operator()(auto&&...) const {}
};
template <class T>
concept Described = requires(T& value) {
  each_field(value, Ignore{});
};

template <class T>
Json written(const T& value) {
  return value;
}
template <Described T>
Json written(const T& value);
template <class T>
Json written(const std::optional<T>& value);
template <class T>
Json written(const std::vector<T>& values);
template <class T>
Json written(const std::map<std::string, T>& values);

template <class T>
Json written(const std::optional<T>& value) {
  return value ? written(*value) : Json(nullptr);
}
template <Described T>
Json written(const T& value) {
  Json out = Json::object();
  each_field(value, [&](const char* name, const auto& field) { out[name] = written(field); });
  return out;
}
template <class T>
Json written(const std::vector<T>& values) {
  Json out = Json::array();
  for (const T& value : values) out.push_back(written(value));
  return out;
}
template <class T>
Json written(const std::map<std::string, T>& values) {
  Json out = Json::object();
  for (const auto& [name, value] : values) out[name] = written(value);
  return out;
}

template <class T>
void read(const Json& json, T& value) {
  json.get_to(value);
}
template <Described T>
void read(const Json& json, T& value);
template <class T>
void read(const Json& json, std::optional<T>& value) {
  value.reset();
  if (!json.is_null()) read(json, value.emplace());
}
template <class T>
void read(const Json& json, std::vector<T>& values);
template <class T>
void read(const Json& json, std::map<std::string, T>& values);

template <Described T>
void read(const Json& json, T& value) {
  json.get_ref<const Json::object_t&>();  // throws if it is no object
  each_field(value, [&](const char* name, auto& field) {
    if (auto found = json.find(name); found != json.end()) read(*found, field);
  });
}
template <class T>
void read(const Json& json, std::vector<T>& values) {
  values.clear();
  for (const Json& one : json) read(one, values.emplace_back());
}
template <class T>
void read(const Json& json, std::map<std::string, T>& values) {
  values.clear();
  for (const auto& [name, one] : json.items()) read(one, values[name]);
}

}  // namespace

Json to_json(const Snapshot& snapshot) { return written(snapshot); }

tl::expected<Snapshot, std::string> snapshot_from_json(const Json& json) {
  Snapshot snapshot;
  try {
    read(json, snapshot);
  } catch (const Json::exception& error) {
    return tl::unexpected(std::string(error.what()));
  }
  return snapshot;
}

std::string dump(const Json& json) { return dump_json(json, -1, true, JsonErrorHandler::replace); }

}  // namespace gpuwire::server
