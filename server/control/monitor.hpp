// Monitor observes the broker's sessions: it counts each tenant's use, writes the audit log, and composes snapshots.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "server/broker/session/session_registry.hpp"
#include "server/broker/session/session_parts.hpp"
#include "server/broker/admission/tenants.hpp"
#include "server/control/metrics_source.hpp"
#include "server/control/client/metrics.hpp"
#include "server/log/audit_log.hpp"

namespace gpuwire::server {

// The broker's thread only. It has to be the last of the sessions' parts: parts are notified of an end in reverse
// order, and the other parts must still have a session's values when the monitor reads them for the last time.
class Monitor final : public SessionAttachments {
 public:
  // `registry`, `tenants` and `audit_log` outlive it.
  Monitor(SessionRegistry& registry, const TenantDirectory& tenants, AuditLog& audit_log);

  // `source` outlives the monitor. Precondition: no session yet.
  void add_source(MetricsSource& source) { sources_.push_back(&source); }
  ServerMetrics& server() { return server_; }
  AuditLog& audit_log() { return audit_log_; }

  Snapshot snapshot() const;
  // Counts a caller that was refused before it had a session. `tenant`: empty if unknown; `why`: one of a few words.
  void login_refused(const std::string& tenant, const std::string& why, const LogFields& fields);

  void devices_known(std::span<const ServerDevice> devices) override;
  tl::expected<void, std::string> attach(const SessionRecord&, SessionSpec&, ipc::SessionDescriptors&) override {
    return {};
  }
  void workers_reaped() override;
  void ended(const SessionRecord& session) override;
  void restore_totals(std::vector<KeptEntry>& entries) override;

 private:
  // The counts of ended sessions and refused logins.
  struct Past {
    uint64_t bytes_in = 0, bytes_out = 0, replies = 0, begun = 0, worker_waits = 0;
    uint64_t chunks_found = 0, chunk_bytes_found = 0, chunk_bytes_kept = 0;
    std::map<std::string, uint64_t> ended, refused;
    HistogramMetrics queue_wait_s;
  };
  void see(const SessionEvent& event);
  void count(const SessionEvent& event, const SessionMetrics& last);
  Past& past(const std::string& tenant);
  SessionMetrics metrics_of(const SessionRecord& session) const;
  std::vector<TenantMetrics> tenant_metrics() const;
  void add_sessions(Snapshot& snapshot) const;
  void add_before(Snapshot& snapshot) const;

  const SessionRegistry& registry_;
  const TenantDirectory& tenants_;
  AuditLog& audit_log_;
  std::vector<MetricsSource*> sources_;
  ServerMetrics server_;
  std::vector<DeviceMetrics> devices_;
  // By tenant; only tenants of the directory.
  std::map<std::string, Past> past_;
  // The refusals of other callers.
  std::map<std::string, uint64_t> refused_;
  // Totals of earlier servers, for the counters of the metrics sources.
  Snapshot before_;
  // From ended() until the registry's event of a session's end.
  std::map<scheduler::SessionId, SessionMetrics> last_;
};

}  // namespace gpuwire::server
