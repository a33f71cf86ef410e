#include "server/metrics/families.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "server/log/escape.hpp"
#include "server/metrics/text_format.hpp"

namespace gpuwire::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

ClientMetric metric_with(Labels labels) {
  ClientMetric metric;
  metric.label = std::move(labels);
  return metric;
}

class Family {
 public:
  Family(std::vector<MetricFamily>& all, MetricType type, const char* name, const char* help) : all_(all) {
    family_ = {name, help, type, {}};
  }
  // Families without a metric are left out.
  ~Family() {
    if (!family_.metric.empty()) all_.push_back(std::move(family_));
  }
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;

  void add(double value, Labels labels = {}) {
    ClientMetric metric = metric_with(std::move(labels));
    if (family_.type == MetricType::Counter) metric.counter.value = value;
    else metric.gauge.value = value;
    family_.metric.push_back(std::move(metric));
  }
  // `units`: the number of the histogram's units in one unit of the metric. The division gives bounds that are round
  // numbers.
  void add(const HistogramMetrics& figures, double units, Labels labels) {
    ClientMetric metric = metric_with(std::move(labels));
    uint64_t below = 0;
    for (size_t i = 0; i < figures.counts.size(); ++i) {
      below += figures.counts[i];
      double bound = i < figures.bounds.size() ? figures.bounds[i] / units : std::numeric_limits<double>::infinity();
      metric.histogram.bucket.push_back({below, bound});
    }
    metric.histogram.sample_count = below;
    metric.histogram.sample_sum = figures.sum / units;
    family_.metric.push_back(std::move(metric));
  }

 private:
  std::vector<MetricFamily>& all_;
  MetricFamily family_;
};

double seconds(uint64_t ns) { return double(ns) / 1e9; }
std::string number(uint64_t value) { return std::to_string(value); }

struct Writer {
  std::vector<MetricFamily> all;
  Family gauge(const char* name, const char* help) { return Family(all, MetricType::Gauge, name, help); }
  Family counter(const char* name, const char* help) { return Family(all, MetricType::Counter, name, help); }
  Family histogram(const char* name, const char* help) { return Family(all, MetricType::Histogram, name, help); }

  // Adds one metric for each tenant, with its `value`.
  template <class Value>
  void of_tenants(Family&& family, const Snapshot& snapshot, Value value) {
    for (const TenantMetrics& tenant : snapshot.tenants) family.add(value(tenant), {{"tenant", tenant.name}});
  }
  // Adds one metric for each tenant on each GPU.
  template <class Value>
  void of_tenants_gpus(Family&& family, const Snapshot& snapshot, Value value) {
    for (const TenantMetrics& tenant : snapshot.tenants)
      for (const TenantDeviceMetrics& device : tenant.devices)
        family.add(value(device), {{"tenant", tenant.name}, {"gpu", number(device.device)}});
  }
  template <class Value>
  void of_gpus(Family&& family, const Snapshot& snapshot, Value value) {
    for (const DeviceMetrics& device : snapshot.devices) family.add(value(device), {{"gpu", number(device.index)}});
  }
};

void add_server(Writer& out, const Snapshot& snapshot) {
  const ServerMetrics& server = snapshot.server;
  out.gauge("gpuwire_info", "The server's release and devices")
      .add(1, {{"release", server.release}, {"devices", escaped(server.devices)}});
  out.gauge("gpuwire_start_time_seconds", "When the server was started, in seconds since 1970")
      .add(server.started_unix_s);
  out.gauge("gpuwire_sessions_max", "Sessions that the server serves at once").add(double(server.sessions_max));
  out.gauge("gpuwire_draining", "1 while the server is shutting down").add(server.draining ? 1 : 0);
  out.counter("gpuwire_audit_lines_lost_total", "Lines of the audit log that could not be written")
      .add(double(server.audit_lines_lost));
  Family ends = out.gauge("gpuwire_certificate_expires_seconds",
                          "When the authority, the server's certificate and the newest certificate and token of each "
                          "tenant and user expire, in seconds since 1970");
  for (const CertificateMetrics& one : server.certificates)
    if (!one.renewed)
      ends.add(one.expires_unix_s, {{"of", one.of}, {"tenant", one.tenant}, {"user", one.user}, {"kind", one.kind}});
}

void add_gpus(Writer& out, const Snapshot& snapshot) {
  {
    Family info = out.gauge("gpuwire_device_info", "A GPU's name");
    for (const DeviceMetrics& device : snapshot.devices)
      info.add(1, {{"gpu", number(device.index)}, {"name", escaped(device.name)}});
  }
  out.of_gpus(out.gauge("gpuwire_device_memory_bytes", "Memory that tenants may have"), snapshot,
              [](const DeviceMetrics& d) { return double(d.memory_bytes); });
  out.of_gpus(out.gauge("gpuwire_device_memory_used_bytes", "Memory that tenants have"), snapshot,
              [](const DeviceMetrics& d) { return double(d.memory_used_bytes); });
  out.of_gpus(out.gauge("gpuwire_device_memory_reserved_bytes", "Memory that is reserved for sessions, used or not"),
              snapshot, [](const DeviceMetrics& d) { return double(d.memory_reserved_bytes); });
  out.of_gpus(out.gauge("gpuwire_device_memory_held_bytes",
                        "Memory that nobody else can have: used, or reserved and not used yet"),
              snapshot, [](const DeviceMetrics& d) { return double(d.memory_held_bytes); });
  out.of_gpus(out.gauge("gpuwire_device_prewarmed_workers", "Workers that are ready for sessions to come, or start"),
              snapshot, [](const DeviceMetrics& d) { return double(d.prewarmed_workers); });
  out.of_gpus(out.gauge("gpuwire_device_prewarmed_memory_bytes", "Memory that the contexts of these workers take"),
              snapshot, [](const DeviceMetrics& d) { return double(d.prewarmed_memory_bytes); });
  out.of_gpus(out.gauge("gpuwire_device_drained", "1 while the GPU is drained: no session begins on it"), snapshot,
              [](const DeviceMetrics& d) { return d.drain.empty() ? 0.0 : 1.0; });
  out.of_gpus(out.gauge("gpuwire_device_sessions", "Sessions that have the GPU"), snapshot,
              [](const DeviceMetrics& d) { return double(d.sessions); });
  out.of_gpus(out.counter("gpuwire_device_gpu_seconds_total", "GPU time charged to tenants"), snapshot,
              [](const DeviceMetrics& d) { return seconds(d.gpu_time_ns); });
  out.of_gpus(out.counter("gpuwire_device_system_seconds_total",
                          "GPU time that nobody is charged for: switches and idle leases"),
              snapshot, [](const DeviceMetrics& d) { return seconds(d.system_time_ns); });
  out.of_gpus(
      out.counter("gpuwire_device_lease_hand_overs_total", "Times that the lease went from one session to another"),
      snapshot, [](const DeviceMetrics& d) { return double(d.hand_overs); });
  Family regimes = out.counter("gpuwire_device_regime_seconds_total", "Time in each regime of sharing");
  Family drains =
      out.histogram("gpuwire_drain_seconds",
                    "From a gate's closing until the last work of its session was seen done, by the session's class");
  for (const DeviceMetrics& device : snapshot.devices) {
    for (const auto& [regime, ns] : device.regime_ns)
      regimes.add(seconds(ns), {{"gpu", number(device.index)}, {"regime", regime}});
    for (const auto& [service_class, histogram] : device.drain_us)
      drains.add(histogram, 1e6, {{"gpu", number(device.index)}, {"class", service_class}});
  }
}

// Users are not labels, because there may be thousands; their figures are in status, usage and the audit log.
void add_budgets(Writer& out, const Snapshot& snapshot) {
  Family budgets = out.gauge("gpuwire_tenant_budget_seconds", "GPU time that the tenant may use in a calendar month");
  Family used =
      out.gauge("gpuwire_tenant_budget_used_seconds", "GPU time of this calendar month (UTC) that it has used");
  Family users = out.gauge("gpuwire_tenant_users_over_budget", "Its users who have used their own budget up");
  for (const TenantMetrics& tenant : snapshot.tenants) {
    const Labels labels{{"tenant", tenant.name}};
    if (tenant.budget_ns) {
      budgets.add(seconds(tenant.budget_ns), labels);
      used.add(seconds(tenant.budget_used_ns), labels);
    }
    if (tenant.users.empty()) continue;
    users.add(double(std::ranges::count_if(
                  tenant.users,
                  [](const UserMetrics& user) { return user.budget_ns && user.budget_used_ns >= user.budget_ns; })),
              labels);
  }
}

void add_shares(Writer& out, const Snapshot& snapshot) {
  using Share = TenantDeviceMetrics;
  out.of_tenants_gpus(out.counter("gpuwire_gpu_seconds_total", "GPU time charged to the tenant"), snapshot,
                      [](const Share& s) { return seconds(s.gpu_time_ns); });
  out.of_tenants_gpus(out.gauge("gpuwire_memory_used_bytes", "GPU memory that the tenant has"), snapshot,
                      [](const Share& s) { return double(s.memory_used_bytes); });
  out.of_tenants_gpus(
      out.gauge("gpuwire_memory_reserved_bytes", "GPU memory that is reserved for the tenant's sessions, used or not"),
      snapshot, [](const Share& s) { return double(s.memory_reserved_bytes); });
  out.of_tenants_gpus(out.gauge("gpuwire_memory_held_bytes",
                                "GPU memory that the tenant's sessions use, or have reserved and do not use yet"),
                      snapshot, [](const Share& s) { return double(s.memory_held_bytes); });
  out.of_tenants_gpus(out.gauge("gpuwire_memory_limit_bytes", "GPU memory that the tenant may have; 0: all"), snapshot,
                      [](const Share& s) { return double(s.memory_limit_bytes); });
  out.of_tenants_gpus(
      out.gauge("gpuwire_memory_guaranteed_bytes", "GPU memory that is the tenant's whatever others do"), snapshot,
      [](const Share& s) { return double(s.memory_guaranteed_bytes); });
  out.of_tenants_gpus(
      out.gauge("gpuwire_memory_allowance_bytes", "GPU memory that the tenant's sessions may take now without asking"),
      snapshot, [](const Share& s) { return double(s.memory_allowance_bytes); });
}

void add_tenants(Writer& out, const Snapshot& snapshot) {
  using Tenant = TenantMetrics;
  out.of_tenants(out.gauge("gpuwire_host_memory_used_bytes", "What the tenant holds of the server's own memory"),
                 snapshot, [](const Tenant& t) { return double(t.host_memory_used_bytes); });
  out.of_tenants(
      out.gauge("gpuwire_host_memory_limit_bytes", "What the tenant may hold of the server's own memory; 0: no bound"),
      snapshot, [](const Tenant& t) { return double(t.host_memory_limit_bytes); });
  out.of_tenants(out.gauge("gpuwire_chunk_memory_bytes", "What the tenant's chunk store holds in memory"), snapshot,
                 [](const Tenant& t) { return double(t.chunk_memory_bytes); });
  out.of_tenants(out.gauge("gpuwire_chunk_disk_bytes", "What the tenant's chunk store holds on disk"), snapshot,
                 [](const Tenant& t) { return double(t.chunk_disk_bytes); });
  out.of_tenants(out.counter("gpuwire_chunks_found_total",
                             "Chunks of copies to the device that the tenant's clients have not had to send"),
                 snapshot, [](const Tenant& t) { return double(t.chunks_found); });
  out.of_tenants(out.counter("gpuwire_chunk_bytes_found_total",
                             "Bytes of copies to the device that the tenant's clients have not had to send"),
                 snapshot, [](const Tenant& t) { return double(t.chunk_bytes_found); });
  out.of_tenants(out.counter("gpuwire_chunk_bytes_kept_total", "Bytes written to the tenant's chunk store"), snapshot,
                 [](const Tenant& t) { return double(t.chunk_bytes_kept); });
  out.of_tenants(out.counter("gpuwire_received_bytes_total", "Bytes from the tenant's clients"), snapshot,
                 [](const Tenant& t) { return double(t.bytes_in); });
  out.of_tenants(out.counter("gpuwire_sent_bytes_total", "Bytes to the tenant's clients"), snapshot,
                 [](const Tenant& t) { return double(t.bytes_out); });
  out.of_tenants(out.counter("gpuwire_client_waits_total",
                             "Times that a program of the tenant waited for an answer of the server"),
                 snapshot, [](const Tenant& t) { return double(t.replies); });
  out.of_tenants(out.counter("gpuwire_sessions_begun_total", "Sessions that were begun"), snapshot,
                 [](const Tenant& t) { return double(t.begun); });
  out.of_tenants(out.counter("gpuwire_worker_waits_total", "Sessions for which no worker was ready"), snapshot,
                 [](const Tenant& t) { return double(t.worker_waits); });
  Family waits = out.histogram("gpuwire_queue_wait_seconds", "From a session's login until it got its GPUs");
  for (const Tenant& tenant : snapshot.tenants) waits.add(tenant.queue_wait_s, 1, {{"tenant", tenant.name}});
}

uint64_t count_of(const std::map<std::string, uint64_t>& counts, const char* name) {
  auto found = counts.find(name);
  return found == counts.end() ? 0 : found->second;
}

void add_counts(Writer& out, const Snapshot& snapshot) {
  Family sessions = out.gauge("gpuwire_sessions", "Sessions now, by state");
  Family queue = out.gauge("gpuwire_queue_length", "Sessions that wait for GPUs");
  Family ended = out.counter("gpuwire_sessions_ended_total", "Sessions that have ended, by cause");
  Family left = out.gauge(
      "gpuwire_detached_seconds_left",
      "Until the first of the tenant's detached sessions ends if its client does not come back; 0: there is none");
  Family suspended = out.gauge("gpuwire_suspended_memory_bytes",
                               "Device memory of suspended sessions, which is in the server's own memory");
  Family refused = out.counter("gpuwire_logins_refused_total",
                               "Logins that were refused, by reason; tenant is empty when it is not known");
  for (const TenantMetrics& tenant : snapshot.tenants) {
    queue.add(double(count_of(tenant.sessions, "queued")), {{"tenant", tenant.name}});
    // Every state is always present, so that a graph has no gaps.
    for (const char* state :
         {"queued", "starting", "granted", "running", "suspending", "suspended", "resuming", "detached", "ending"})
      sessions.add(double(count_of(tenant.sessions, state)), {{"tenant", tenant.name}, {"state", state}});
    double soonest = 0, suspended_bytes = 0;
    for (const SessionMetrics& session : snapshot.sessions) {
      if (session.tenant != tenant.name) continue;
      suspended_bytes += double(session.suspended_bytes);
      if (session.detached_left_s > 0 && (soonest == 0 || session.detached_left_s < soonest))
        soonest = session.detached_left_s;
    }
    suspended.add(suspended_bytes, {{"tenant", tenant.name}});
    left.add(soonest, {{"tenant", tenant.name}});
    for (const auto& [cause, count] : tenant.ended)
      ended.add(double(count), {{"tenant", tenant.name}, {"cause", cause}});
    for (const auto& [reason, count] : tenant.refused)
      refused.add(double(count), {{"tenant", tenant.name}, {"reason", reason}});
  }
  for (const auto& [reason, count] : snapshot.refused) refused.add(double(count), {{"tenant", ""}, {"reason", reason}});
}

}  // namespace

std::vector<MetricFamily> metric_families(const Snapshot* snapshot) {
  Writer out;
  out.gauge("gpuwire_up", "1 when the server answers").add(snapshot ? 1 : 0);
  if (snapshot) {
    add_server(out, *snapshot);
    add_gpus(out, *snapshot);
    add_budgets(out, *snapshot);
    add_shares(out, *snapshot);
    add_tenants(out, *snapshot);
    add_counts(out, *snapshot);
  }
  return std::move(out.all);
}

std::string metrics_text(const Snapshot* snapshot) { return text_of(metric_families(snapshot)); }

}  // namespace gpuwire::server
