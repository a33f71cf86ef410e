// How callers become sessions: the listener, the login process, the identity, and what the admission answers.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <tl/expected.hpp>

#include "server/broker/admission/admission.hpp"
#include "server/broker/admission/listener.hpp"
#include "server/broker/admission/identity_watch.hpp"
#include "server/broker/admission/login_process.hpp"
#include "server/broker/admission/query_budget.hpp"
#include "server/broker/limits.hpp"
#include "server/broker/session/sessions.hpp"
#include "server/config/configuration.hpp"
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
    std::function<void(const std::string& reason)>
        failed;                     // the identity that the server was started with cannot be used
    std::function<void()> emptied;  // nobody is at the door or waits any more
  };
  // `login_program`: gpuwire-login.
  ConnectionManager(boost::asio::io_context& io, std::string login_program, Parts parts, Events events);
  ~ConnectionManager();

  // Takes the addresses, reads the identity, starts the login process. The error names what cannot be had.
  tl::expected<void, std::string> start(const std::vector<ListenAddress>& listen, const Configuration& configuration);
  // Takes connections, and calls `opened`: at once, or when the login process has read the identity that the server was
  // started with, so that nobody is told that there is none.
  void open(std::function<void()> opened);
  void close();
  // Who may come as whom; another identity folder than the one before is used when it can be read.
  void configure(const Configuration& configuration);
  // Empty: there is no identity.
  std::filesystem::path identity_directory() const {
    return identity_ ? identity_->directory() : std::filesystem::path();
  }
  // What a credential of the identity says of the job that it was made for.
  JobOfCredential job_of(const std::string& credential) const;
  // The tenant's credential that this token is, if it counts now. The error is for whoever has shown it.
  tl::expected<Credential, std::string> credential_of_token(const std::string& token);
  // Whether the credential of this number counts now.
  bool counts(const std::string& credential);
  // What `gpuwire admin` has changed counts from here on (it is found out without this, too).
  void refresh_identity();

  // The tenant that this user is on a Unix socket; empty: none.
  std::string unix_tenant_of(uid_t user) const;
  // Who of that tenant the user is: as the configuration calls it, where that can be a name.
  std::string unix_name_of(uid_t user) const;

  pid_t login_process() const { return login_.pid(); }
  std::vector<ListenAddress> addresses() const { return door_.addresses(); }
  bool empty() const { return door_.empty() && connections_.empty() && returning_.empty(); }

  // Callers that were refused before there was a session. `untold`: how many more there were, too many to be told one
  // by one.
  using RefusalObserver = std::function<void(const ipc::TurnedAway& refusal)>;
  // What answers a tenant's questions, as Login::query has them; an error is a refusal. `asking`: who asks, and what a
  // program of its would want. Before the first connection.
  using Query =
      std::function<tl::expected<std::string, std::string>(const LoginRequest& asking, const std::string& query)>;
  // So often as QueryBudget says.
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
  bool refused_as_revoked(const ipc::Login& request);
  void notify(ipc::TurnedAway refusal);
  void forget(ipc::ConnectionId connection);

  boost::asio::io_context& io_;
  const Parts parts_;
  const Events events_;
  Listener door_;
  LoginProcess login_;
  std::unique_ptr<IdentityWatch> identity_;  // null: no TLS and no tokens
  std::string first_error_;
  std::function<void()> opened_;  // not empty: it opens when the identity has been read
  bool identity_used_ = false;    // the login process has one
  bool allow_unencrypted_network_ = false;
  bool rdma_ = false;
  std::string open_tenant_;
  std::map<uid_t, std::string> unix_tenants_, unix_names_;
  std::map<ipc::ConnectionId, scheduler::SessionId>
      connections_;  // known, and not yet served; bounded by the admission
  std::map<ipc::ConnectionId, scheduler::SessionId>
      returning_;  // clients of running sessions, with a new connection; bounded by the login process
  std::vector<RefusalObserver> refusal_observers_;
  Query query_;
  QueryBudget query_budget_;
  struct Told {
    std::chrono::steady_clock::time_point since;
    uint32_t told = 0, untold = 0;  // since then
  };
  std::map<std::string, Told> notified_;  // by kind
  LineBudget logged_of_address_{
      {.at_once = kLoginAuditsOfAddressAtOnce, .refill = std::chrono::milliseconds(kLoginAuditsOfAddressRefillMs)}};
};

}  // namespace gpuwire::server
