// The parts of a server that only observe it: figures, the control socket, the audit log, metrics.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <tl/expected.hpp>

#include "server/broker/broker.hpp"
#include "server/broker/suspension/drained_gpus.hpp"
#include "server/broker/suspension/suspensions.hpp"
#include "server/cli/serve/expiry_watch.hpp"
#include "server/cli/serve/metrics_process.hpp"
#include "server/cli/serve/tenant_answers.hpp"
#include "server/cli/serve/web_process.hpp"
#include "server/config/configuration.hpp"
#include "server/control/control_server.hpp"
#include "server/control/kept_totals.hpp"
#include "server/control/monitor.hpp"
#include "server/control/web/web_answers.hpp"
#include "server/log/audit_log.hpp"

namespace gpuwire::server {

// On the broker's thread. Made after the broker and after its parts were added, before the broker starts; destroyed
// before the broker.
class Observation {
 public:
  // As ControlSources::reload; empty: the server has no configuration file.
  using Reload = decltype(ControlSources::reload);

  // Opens the audit log and the control socket. The error names the configured one that cannot be opened. Without a
  // control socket at the default path the server continues, with a warning.
  static tl::expected<std::unique_ptr<Observation>, std::string> start(boost::asio::io_context& io, Broker& broker,
                                                                       Suspensions& suspensions, DrainedGpus& drains,
                                                                       const Configuration& configuration,
                                                                       Reload reload);

  Monitor& monitor() { return monitor_; }
  // Makes the counts continue in the next server, if this one does not end in order. `store` outlives this object.
  void keep_totals(boost::asio::io_context& io, EntryStore& store) {
    totals_.emplace(io, broker_.registry(), monitor_, store);
  }
  // The server has ended in order.
  void forget_totals() {
    if (totals_) totals_->forget();
  }
  // Called when the server accepts programs, with its addresses, and its devices in words.
  void listening(std::string where, std::string devices);
  // Called after an attempt to read the configuration again.
  void reloaded(const tl::expected<std::string, ReloadRefused>& result);
  // Called at SIGHUP: log files may have been moved away.
  void reopen_files();

 private:
  Observation(boost::asio::io_context& io, Broker& broker, Suspensions& suspensions, DrainedGpus& drains,
              AuditLog audit_log, Reload reload);
  Snapshot snapshot();
  ControlSources sources(Reload reload);
  std::vector<std::string> tenants_of_user(uid_t user) const;
  std::optional<size_t> revoked(const std::string& directory, const std::string& identity);
  tl::expected<GpuDrain, std::string> drained(
      uint64_t gpu, tl::expected<DrainedGpus::Drain, std::string> (DrainedGpus::*change)(scheduler::DeviceIndex));
  // Whether the session belongs to a caller who has logged in as a tenant.
  bool is_own(const LoginRequest& asking, uint64_t session) const;
  // These answer queries of such a caller.
  bool end_own_session(const LoginRequest& asking, uint64_t session);
  bool move_own_session(const LoginRequest& asking, uint64_t session, bool suspend, ControlSources::Moved done);
  std::optional<std::vector<uint64_t>> sessions_of(const std::string& tenant) const;
  std::optional<size_t> end_tenant(const std::string& tenant, const std::string& reason);
  tl::expected<void, std::string> open_control_socket(const Configuration& configuration);
  tl::expected<void, std::string> start_web(boost::asio::io_context& io, const Configuration& configuration);
  WebCredentials web_credentials();
  tl::expected<WebCode, std::string> make_web_code();
  tl::expected<void, std::string> start_metrics(boost::asio::io_context& io, const Configuration& configuration);

  Broker& broker_;
  Suspensions& suspensions_;
  DrainedGpus& drains_;
  AuditLog audit_log_;
  Monitor monitor_;
  std::filesystem::path web_certificate_;  // empty: the page is not encrypted
  std::optional<KeptTotals> totals_;
  ExpiryWatch expiries_;
  TenantAnswers answers_;
  ControlServer control_;
  std::unique_ptr<MetricsProcess> metrics_;            // null: none is wanted
  std::unique_ptr<WebAnswers> web_answers_;            // null: no page is wanted
  std::unique_ptr<PageCertificate> page_certificate_;  // null: the page is not encrypted
  std::unique_ptr<WebProcess> web_;                    // after the objects that it queries
};

}  // namespace gpuwire::server
