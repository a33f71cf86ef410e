#include "server/control/monitor.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include <unistd.h>

#include "server/control/audit_trail.hpp"
#include "server/control/kept_totals.hpp"

namespace gpuwire::server {
namespace {

template <class Sum, class Part>
void add_chunks(Sum& sum, const Part& part) {
  sum.chunks_found += part.chunks_found;
  sum.chunk_bytes_found += part.chunk_bytes_found;
  sum.chunk_bytes_kept += part.chunk_bytes_kept;
}

using std::chrono::system_clock;

const std::vector<double> kQueueWaitBoundsS{0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 14400};

double unix_s(system_clock::time_point when) { return std::chrono::duration<double>(when.time_since_epoch()).count(); }

const char* name_of(scheduler::ServiceClass service_class) {
  switch (service_class) {
    case scheduler::ServiceClass::realtime: return "realtime";
    case scheduler::ServiceClass::interactive: return "interactive";
    case scheduler::ServiceClass::batch: return "batch";
    case scheduler::ServiceClass::scavenger: return "scavenger";
  }
  return "?";
}

}  // namespace

Monitor::Monitor(SessionRegistry& registry, const TenantDirectory& tenants, AuditLog& audit_log)
    : registry_(registry), tenants_(tenants), audit_log_(audit_log) {
  server_.release = GPUWIRE_VERSION;
  server_.pid = ::getpid();
  server_.started_unix_s = unix_s(system_clock::now());
  registry.observe([this](const SessionEvent& event) { see(event); });
}

void Monitor::devices_known(std::span<const ServerDevice> devices) {
  devices_.clear();
  for (const ServerDevice& device : devices)
    devices_.push_back({.index = device.index, .name = device.name, .memory_bytes = device.bytes});
}

// --- what happens --------------------------------------------------------------------------------------------------

void Monitor::see(const SessionEvent& event) {
  auto kept = last_.extract(event.session.number);
  const SessionMetrics last = kept ? std::move(kept.mapped()) : SessionMetrics{};
  count(event, last);
  audit(audit_log_, event, last);
  if (kept && event.kind != SessionEvent::Kind::ended && event.kind != SessionEvent::Kind::refused)
    last_.insert(std::move(kept));
}

Monitor::Past& Monitor::past(const std::string& tenant) {
  Past& past = past_[tenant];
  if (past.queue_wait_s.bounds.empty())
    past.queue_wait_s = {.bounds = kQueueWaitBoundsS, .counts = std::vector<uint64_t>(kQueueWaitBoundsS.size() + 1)};
  return past;
}

void Monitor::count(const SessionEvent& event, const SessionMetrics& last) {
  const std::string& tenant = event.session.tenant;
  if (!tenants_.find(event.session.tenant_id) || tenants_.find(event.session.tenant_id)->settings.name != tenant) {
    if (event.kind == SessionEvent::Kind::refused) ++refused_[name_of(event.refusal)];
    return;
  }
  Past& past = this->past(tenant);
  switch (event.kind) {
    case SessionEvent::Kind::queued:
    case SessionEvent::Kind::warned:
    case SessionEvent::Kind::detached:
    case SessionEvent::Kind::attached:
    case SessionEvent::Kind::suspended:
    case SessionEvent::Kind::resumed:
    case SessionEvent::Kind::adopted:
    case SessionEvent::Kind::resume_refused: break;
    case SessionEvent::Kind::admitted:
      past.queue_wait_s.observe(
          std::max(0.0, std::chrono::duration<double>(system_clock::now() - event.session.arrived).count()));
      break;
    case SessionEvent::Kind::begun:
      ++past.begun;
      past.worker_waits += event.session.waited_for_worker;
      break;
    case SessionEvent::Kind::ended:
      ++past.ended[end_word(event)];
      past.bytes_in += last.bytes_in, past.bytes_out += last.bytes_out, past.replies += last.replies;
      add_chunks(past, last);
      break;
    case SessionEvent::Kind::refused:
      ++past.refused[name_of(event.refusal)];
      past.worker_waits += event.session.waited_for_worker;
      break;
  }
}

void Monitor::login_refused(const std::string& tenant, const std::string& why, const LogFields& fields) {
  ++(tenants_.find(tenant) ? past(tenant).refused : refused_)[why];
  LogFields line{{"tenant", tenant}, {"why", why}};
  if (fields.is_object()) line.update(fields);
  audit_log_.write("refused", line);
}

// Values read from here on include all work of these workers. One refresh reads all sessions, so it is done once for
// all workers that end together: a thousand ends with a refresh each would read a thousand sessions a thousand times.
void Monitor::workers_reaped() {
  for (MetricsSource* source : sources_) source->refresh();
}

void Monitor::ended(const SessionRecord& session) { last_[session.number] = metrics_of(session); }

// --- of servers before this one ------------------------------------------------------------------------------------

void Monitor::restore_totals(std::vector<KeptEntry>& entries) {
  for (const KeptEntry& entry : entries) add_total(entry.text, before_);
  for (const TenantMetrics& tenant : before_.tenants) {
    Past& own = past(tenant.name);
    own.bytes_in += tenant.bytes_in, own.bytes_out += tenant.bytes_out, own.replies += tenant.replies,
        own.begun += tenant.begun, own.worker_waits += tenant.worker_waits;
    add_chunks(own, tenant);
    for (const auto& [cause, count] : tenant.ended) own.ended[cause] += count;
    for (const auto& [cause, count] : tenant.refused) own.refused[cause] += count;
    own.queue_wait_s.add(tenant.queue_wait_s);
  }
  for (const auto& [cause, count] : before_.refused) refused_[cause] += count;
}

void Monitor::add_before(Snapshot& snapshot) const {
  for (const TenantMetrics& before : before_.tenants) {
    auto tenant = std::ranges::find(snapshot.tenants, before.name, &TenantMetrics::name);
    if (tenant == snapshot.tenants.end()) continue;
    for (const TenantDeviceMetrics& used : before.devices) {
      auto device = std::ranges::find(tenant->devices, used.device, &TenantDeviceMetrics::device);
      if (device == tenant->devices.end()) continue;
      device->gpu_time_ns += used.gpu_time_ns;
      device->granted_ns += used.granted_ns;
    }
  }
  for (const DeviceMetrics& before : before_.devices) {
    auto device = std::ranges::find(snapshot.devices, before.index, &DeviceMetrics::index);
    if (device == snapshot.devices.end() || device->name != before.name) continue;
    device->gpu_time_ns += before.gpu_time_ns;
    device->system_time_ns += before.system_time_ns;
    device->hand_overs += before.hand_overs;
    for (const auto& [regime, ns] : before.regime_ns) device->regime_ns[regime] += ns;
    for (const auto& [service_class, drains] : before.drain_us) device->drain_us[service_class].add(drains);
  }
}

// --- figures -------------------------------------------------------------------------------------------------------

SessionMetrics Monitor::metrics_of(const SessionRecord& session) const {
  bool queued = session.state == SessionState::queued;
  const bool suspension = session.suspension != SuspensionState::none;
  SessionMetrics figures{
      .id = uint64_t(session.number),
      .tenant = session.tenant,
      .user = session.user,
      .service_class = name_of(session.service_class),
      .state =
          suspension && session.state == SessionState::running ? name_of(session.suspension) : name_of(session.state),
      .suspension = name_of(session.suspension),
      .suspended_bytes = session.suspended_bytes,
      .suspended_since_unix_s =
          session.suspended_since.time_since_epoch().count() == 0 ? 0 : unix_s(session.suspended_since),
      .peer = session.peer,
      .program = session.program,
      .host = session.host,
      .security = session.security,
      .credential = session.credential,
      .client_pid = session.client_pid,
      .worker_pid = session.worker_pid,
      .since_unix_s = unix_s(queued || session.begun.time_since_epoch().count() == 0 ? session.arrived : session.begun),
      .place = session.place,
      .waits_for = session.why};
  if (session.state == SessionState::detached)
    figures.detached_left_s =
        std::max(0.0, std::chrono::duration<double>(session.detached_until - system_clock::now()).count());
  for (scheduler::DeviceIndex device : session.devices) figures.devices.push_back({.device = device});
  if (const Tenant* tenant = tenants_.find(session.tenant_id); tenant && !session.devices.empty())
    figures.memory_limit_bytes = memory_on(tenant->settings, session.devices.front()).limit_bytes;
  for (MetricsSource* source : sources_) source->add(session, figures);
  return figures;
}

std::vector<TenantMetrics> Monitor::tenant_metrics() const {
  std::vector<TenantMetrics> all;
  for (const Tenant& tenant : tenants_.all()) {
    const TenantConfiguration& settings = tenant.settings;
    TenantMetrics figures{.name = settings.name,
                          .service_class = name_of(settings.service_class),
                          .weight = settings.weight,
                          .sessions_max = settings.sessions_max,
                          .host_memory_limit_bytes = settings.host_memory_bytes};
    for (const DeviceMetrics& device : devices_) {
      TenantMemory memory = memory_on(settings, device.index);
      figures.devices.push_back({.device = device.index,
                                 .memory_limit_bytes = memory.limit_bytes,
                                 .memory_guaranteed_bytes = memory.guaranteed_bytes});
    }
    figures.queue_wait_s = {.bounds = kQueueWaitBoundsS, .counts = std::vector<uint64_t>(kQueueWaitBoundsS.size() + 1)};
    if (auto found = past_.find(settings.name); found != past_.end()) {
      const Past& past = found->second;
      figures.bytes_in = past.bytes_in, figures.bytes_out = past.bytes_out, figures.replies = past.replies,
      figures.begun = past.begun, figures.worker_waits = past.worker_waits;
      add_chunks(figures, past);
      figures.ended = past.ended, figures.refused = past.refused, figures.queue_wait_s = past.queue_wait_s;
    }
    all.push_back(std::move(figures));
  }
  std::sort(all.begin(), all.end(), [](const TenantMetrics& a, const TenantMetrics& b) { return a.name < b.name; });
  return all;
}

void Monitor::add_sessions(Snapshot& snapshot) const {
  for (const auto& [number, record] : registry_.all()) {
    const SessionMetrics& session = snapshot.sessions.emplace_back(metrics_of(record));
    auto tenant = std::lower_bound(snapshot.tenants.begin(), snapshot.tenants.end(), session.tenant,
                                   [](const TenantMetrics& one, const std::string& name) { return one.name < name; });
    if (tenant != snapshot.tenants.end() && tenant->name == session.tenant) {
      ++tenant->sessions[session.state];
      tenant->bytes_in += session.bytes_in, tenant->bytes_out += session.bytes_out, tenant->replies += session.replies;
      add_chunks(*tenant, session);
    }
    if (record.management) continue;  // it sees GPUs and uses none
    for (const SessionDeviceMetrics& used : session.devices)
      for (DeviceMetrics& device : snapshot.devices)
        if (device.index == used.device) ++device.sessions;
  }
}

Snapshot Monitor::snapshot() const {
  Snapshot snapshot;
  snapshot.taken_ns = uint64_t(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
  snapshot.taken_unix_s = unix_s(system_clock::now());
  snapshot.server = server_;
  snapshot.server.audit_lines_lost = audit_log_.lines_lost();
  const double before = before_.server.counted_since_unix_s;
  snapshot.server.counted_since_unix_s = before > 0 ? before : server_.started_unix_s;
  snapshot.devices = devices_;
  snapshot.tenants = tenant_metrics();
  snapshot.refused = refused_;
  for (MetricsSource* source : sources_) {
    source->refresh();
    source->add(snapshot);
  }
  add_before(snapshot);
  add_sessions(snapshot);
  return snapshot;
}

}  // namespace gpuwire::server
