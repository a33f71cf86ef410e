// ConnectionManager turns callers into sessions: it owns the listener, the login process and the identity, and passes
// on the admission's answers.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <tl/expected.hpp>

#include "server/base/lifetime.hpp"
#include "server/broker/admission/admission.hpp"
#include "server/broker/connection/listener.hpp"
#include "server/broker/connection/identity_watch.hpp"
#include "server/broker/connection/login_process.hpp"
#include "server/broker/connection/query_answer.hpp"
#include "server/broker/connection/query_budget.hpp"
#include "server/broker/limits.hpp"
#include "server/broker/session/sessions.hpp"
#include "server/config/configuration.hpp"
#include "server/identity/tenant_choice.hpp"
#include "server/log/line_budget.hpp"

namespace gpuwire::server {

// The broker's thread only.
class ConnectionManager {
 public:
  struct Parts {
    Sessions& sessions;
    const SessionRegistry& registry;
  };
  struct Events {
    // The identity that the server was started with cannot be used.
    std::function<void(const std::string& reason)> failed;
    // No connection is pending or waits any more.
    std::function<void()> emptied;
  };
  // `login_program`: gpuwire-login.
  ConnectionManager(boost::asio::io_context& io, std::string login_program, Parts parts, Events events);
  ~ConnectionManager();

  // Binds the addresses, reads the identity, starts the login process. The error names the part that failed.
  tl::expected<void, std::string> start(const std::vector<ListenAddress>& listen, const Configuration& configuration);
  // Accepts connections, and calls `opened`: at once, or when the login process has read the identity that the server
  // was started with, so that no caller is refused for want of an identity.
  void open(std::function<void()> opened);
  void close();
  // Applies the configuration's rules for callers; a new identity folder is used once it can be read.
  void configure(const Configuration& configuration);
  // Returns the identity folder; empty: there is no identity.
  std::filesystem::path identity_directory() const {
    return identity_ ? identity_->directory() : std::filesystem::path();
  }
  // Returns the job that a credential of the identity was made for.
  JobOfCredential job_of(const std::string& credential) const;
  // Returns the tenant's credential of this token, if it is valid now. The error is a text for the token's sender.
  tl::expected<Credential, std::string> credential_of_token(const std::string& token);
  // Returns the tenant of a certificate and perhaps a token, by the rules of a login.
  std::variant<ChosenTenant, RefusedTenant> tenant_of(const Shown& shown);
  // Whether the credential of this number is valid now.
  bool counts(const std::string& credential);
  // Applies changes by `gpuwire admin` at once (the broker notices them without this call, too).
  void refresh_identity();

  // Returns the tenant of this user on a Unix socket; empty: none.
  std::string unix_tenant_of(uid_t user) const;
  // Returns the tenant's name for this user, as the configuration has it, where that can be a name.
  std::string unix_name_of(uid_t user) const;

  pid_t login_process() const { return login_.pid(); }
  std::vector<ListenAddress> addresses() const { return door_.addresses(); }
  bool empty() const { return door_.empty() && connections_.empty() && returning_.empty(); }

  // Observes callers that were refused before they had a session. `untold`: the number of further refusals, which are
  // reported as a count only.
  using RefusalObserver = std::function<void(const ipc::TurnedAway& refusal)>;
  // Answers a tenant's queries (Login::query); an error is a refusal. `asking`: the caller, and the request that its
  // program would make. Set before the first connection.
  using Query = std::function<QueryAnswer(const LoginRequest& asking, const std::string& query)>;
  // QueryBudget bounds the rate of answers.
  void set_query(Query query, QueryBudget budget = QueryBudget()) {
    query_ = std::move(query);
    query_budget_ = std::move(budget);
  }
  void observe_refusals(RefusalObserver observer) { refusal_observers_.push_back(std::move(observer)); }

 private:
  std::optional<Listener::Refusal> judge(const Caller& caller);
  void enter(Caller caller, OwnedDescriptor socket);
  std::string open_tenant_for(const Caller& caller) const;

  void open_now();
  void send_identity();
  void identity_read(const std::string& error);
  void identity_changed();
  void requested(ipc::Login request);
  void answered(ipc::ConnectionId connection, const AdmissionAnswer& answer);
  void gone(ipc::ConnectionId connection, const std::string& why);
  void passed(ipc::Passed passed);
  std::string why_revoked(const std::string& credential) const;
  void requested_again(const ipc::Login& request);
  void queried(const ipc::Login& request);
  void answer_query(ipc::ConnectionId connection, const QueryResult& result);
  // The broker's thread is free while queries wait for their answers; their clients must not give up meanwhile.
  void keep_queries_waiting();
  bool refused_as_revoked(const ipc::Login& request);
  void notify(ipc::TurnedAway refusal);
  void forget(ipc::ConnectionId connection);

  boost::asio::io_context& io_;
  const Parts parts_;
  const Events events_;
  Listener door_;
  LoginProcess login_;
  // Null: neither TLS nor tokens.
  std::unique_ptr<IdentityWatch> identity_;
  std::string first_error_;
  // Set while opening waits for the identity to be read.
  std::function<void()> opened_;
  // The login process has an identity.
  bool identity_used_ = false;
  bool allow_unencrypted_network_ = false;
  bool rdma_ = false;
  std::string open_tenant_;
  std::map<uid_t, std::string> unix_tenants_, unix_names_;
  // With a session, not served yet; bounded by the admission.
  std::map<ipc::ConnectionId, scheduler::SessionId> connections_;
  // Clients of running sessions, with a new connection; bounded by the login process.
  std::map<ipc::ConnectionId, scheduler::SessionId> returning_;
  std::vector<RefusalObserver> refusal_observers_;
  Query query_;
  QueryBudget query_budget_;
  // Queries that wait for their answers, with their tenants.
  std::map<ipc::ConnectionId, std::string> queries_;
  boost::asio::steady_timer query_timer_;
  bool query_timer_runs_ = false;
  struct Told {
    std::chrono::steady_clock::time_point since;
    // Since then.
    uint32_t told = 0, untold = 0;
  };
  // By kind of refusal.
  std::map<std::string, Told> notified_;
  LineBudget logged_of_address_{
      {.at_once = kLoginAuditsOfAddressAtOnce, .refill = std::chrono::milliseconds(kLoginAuditsOfAddressRefillMs)}};
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
