// Watches the broker's sessions: counts what a tenant has had, writes the audit log, and puts the figures together.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "server/broker/session_book.hpp"
#include "server/broker/session_parts.hpp"
#include "server/broker/tenants.hpp"
#include "server/control/figure_source.hpp"
#include "server/control/figures.hpp"
#include "server/log/audit_log.hpp"

namespace gpuwire::server {

// The broker's thread only. Add it to the sessions' parts last: parts hear of an end in the reverse order, and the others' figures of a session have to be
// there still when it takes them for the last time.
class Monitor final : public SessionAttachments {
 public:
  // `book`, `tenants` and `audit_log` outlive it.
  Monitor(SessionBook& book, const TenantDirectory& tenants, AuditLog& audit_log);

  // Outlives it, too. Before the first session.
  void add_source(FigureSource& source) { sources_.push_back(&source); }
  ServerFigures& server() { return server_; }
  AuditLog& audit_log() { return audit_log_; }

  Snapshot snapshot() const;
  // A caller that was refused before there was a session. `tenant`: empty when nobody knows which; `why`: one of few words.
  void login_refused(const std::string& tenant, const std::string& why, const LogFields& fields);

  void devices_known(std::span<const ServerDevice> devices) override;
  tl::expected<void, std::string> attach(const SessionRecord&, SessionOrder&, Handoff&) override { return {}; }
  void ended(const SessionRecord& session) override;

 private:
  // What ended sessions and refused logins have left.
  struct Past {
    uint64_t bytes_in = 0, bytes_out = 0, replies = 0, begun = 0;
    std::map<std::string, uint64_t> ended, refused;
    HistogramFigures queue_wait_s;
  };
  void see(const SessionEvent& event);
  void count(const SessionEvent& event, const SessionFigures& last);
  Past& past(const std::string& tenant);
  SessionFigures figures_of(const SessionRecord& session) const;
  std::vector<TenantFigures> tenant_figures() const;
  void add_sessions(Snapshot& snapshot) const;

  const SessionBook& book_;
  const TenantDirectory& tenants_;
  AuditLog& audit_log_;
  std::vector<FigureSource*> sources_;
  ServerFigures server_;
  std::vector<DeviceFigures> devices_;
  std::map<std::string, Past> past_;                     // by tenant; only of those that the directory knows
  std::map<std::string, uint64_t> refused_;              // of others
  std::map<scheduler::SessionId, SessionFigures> last_;  // from a session's end as a part until its end in the book
};

}  // namespace gpuwire::server
