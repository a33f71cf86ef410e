#include "server/broker/connection/connection_manager.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "protocol/wire/questions.hpp"
#include "server/broker/limits.hpp"
#include "server/config/unix_users.hpp"
#include "server/identity/tenant_choice.hpp"

namespace gpuwire::server {

ConnectionManager::ConnectionManager(boost::asio::io_context& io, std::string login_program, Parts parts, Events events)
    : io_(io),
      parts_(parts),
      events_(std::move(events)),
      door_(io,
            {.judge = [this](const Caller& caller) { return judge(caller); },
             .enter = [this](Caller caller, OwnedDescriptor socket) { enter(std::move(caller), std::move(socket)); },
             .refused =
                 [this](const Caller& caller, const Listener::Refusal& refusal) {
                   notify({caller.peer, refusal.kind, refusal.reason, {}, {}, 0});
                 },
             .emptied = [this] { events_.emptied(); }}),
      login_(io, std::move(login_program),
             {.requested = [this](ipc::Login request) { requested(std::move(request)); },
              .gone = [this](ipc::ConnectionId connection, const std::string& why) { gone(connection, why); },
              .passed = [this](ipc::Passed said) { passed(std::move(said)); },
              .turned_away = [this](const ipc::TurnedAway& refusal) { notify(refusal); },
              .identity_read = [this](const std::string& error) { identity_read(error); },
              .started = [this] { send_identity(); }}),
      query_timer_(io) {}

ConnectionManager::~ConnectionManager() = default;

tl::expected<void, std::string> ConnectionManager::start(const std::vector<ListenAddress>& listen,
                                                         const Configuration& configuration) {
  if (auto listening = door_.listen(listen); !listening) return listening;
  configure(configuration);
  rdma_ = configuration.rdma;  // as its workers are started
  if (!first_error_.empty()) return tl::unexpected(first_error_);
  login_.start();
  return {};
}

void ConnectionManager::open(std::function<void()> opened) {
  opened_ = std::move(opened);
  if (!identity_ || identity_used_) open_now();
}

void ConnectionManager::open_now() {
  auto opened = std::exchange(opened_, {});
  if (!opened) return;
  door_.open();
  opened();
}

void ConnectionManager::close() {
  opened_ = {};
  door_.close();
}

void ConnectionManager::configure(const Configuration& configuration) {
  allow_unencrypted_network_ = configuration.allow_unencrypted_network;
  open_tenant_ = configuration.open_tenant.value_or("");
  UnixUsers users = unix_users(configuration);
  for (const std::string& mistake : users.mistakes) spdlog::warn("{}", mistake);
  unix_tenants_ = std::move(users.tenants);
  unix_names_ = std::move(users.names);
  const std::filesystem::path& directory = configuration.tls.directory;
  if (directory == (identity_ ? identity_->directory() : std::filesystem::path())) return;
  std::unique_ptr<IdentityWatch> watch;
  if (!directory.empty()) {
    watch = std::make_unique<IdentityWatch>(io_, directory, [this] { identity_changed(); });
    if (auto started = watch->start(); !started) {
      first_error_ = started.error();
      return spdlog::error("{}", first_error_);
    }
  }
  identity_ = std::move(watch);
  send_identity();
}

// --- the door ------------------------------------------------------------------------------------------------------

std::optional<Listener::Refusal> ConnectionManager::judge(const Caller& caller) {
  const bool tls = caller.preface_flags & wire::kPrefaceTls;
  if (!login_.available())
    return Listener::Refusal{wire::RefusalCode::busy, name_of(RefusalKind::overload),
                             "too many connections arrive at this server; try again"};
  if (tls && !identity_used_)
    return Listener::Refusal{wire::RefusalCode::unauthorised, name_of(RefusalKind::tls),
                             "this server has no certificate (gpuwire admin init makes one), and so no TLS"};
  if (!tls && !caller.local && !allow_unencrypted_network_)
    return Listener::Refusal{wire::RefusalCode::unauthorised, name_of(RefusalKind::tls),
                             "this server requires TLS: it accepts only encrypted connections from other machines"};
  return std::nullopt;
}

std::string ConnectionManager::open_tenant_for(const Caller& caller) const {
  return caller.local || allow_unencrypted_network_ ? open_tenant_ : std::string();
}

std::string ConnectionManager::unix_tenant_of(uid_t user) const {
  auto found = unix_tenants_.find(user);
  return found == unix_tenants_.end() ? std::string() : found->second;
}

std::string ConnectionManager::unix_name_of(uid_t user) const {
  auto found = unix_names_.find(user);
  return found != unix_names_.end() && is_user_name(found->second) ? found->second : std::string();
}

void ConnectionManager::enter(Caller caller, OwnedDescriptor socket) {
  refresh_identity();
  login_.arrive({.socket = std::move(socket),
                 .peer = caller.peer,
                 .address = caller.address,
                 .tls = (caller.preface_flags & wire::kPrefaceTls) != 0,
                 .unix_tenant = caller.unix_user ? unix_tenant_of(*caller.unix_user) : std::string(),
                 .open_tenant = open_tenant_for(caller),
                 .management = (caller.preface_flags & wire::kPrefaceManagement) != 0,
                 .rdma = rdma_,
                 .unix_user = caller.unix_user ? unix_name_of(*caller.unix_user) : std::string()});
}

// --- the identity --------------------------------------------------------------------------------------------------

void ConnectionManager::send_identity() {
  if (!identity_) {
    if (std::exchange(identity_used_, false)) login_.send_identity({});
    return;
  }
  auto files = identity_->open_files();
  if (files) login_.send_identity(std::move(*files));
  else identity_read(files.error());
}

void ConnectionManager::identity_read(const std::string& error) {
  if (error.empty()) {
    identity_used_ = identity_ != nullptr;
    return open_now();
  }
  std::string text = identity_ ? fmt::format("{}: {}", identity_->directory().string(), error) : error;
  if (!identity_used_) return events_.failed(text);
  spdlog::error("{}; what was read before stays in force", text);
}

void ConnectionManager::refresh_identity() {
  if (identity_) identity_->refresh();
}

void ConnectionManager::identity_changed() {
  send_identity();
  std::vector<std::pair<scheduler::SessionId, std::string>> over;
  for (const auto& [number, session] : parts_.registry.all()) {
    const Credential* credential =
        session.credential.empty() ? nullptr : identity_->credentials().find(session.credential);
    if (!credential || !credential->revoked) continue;
    const bool begun = session.state == SessionState::running || session.state == SessionState::detached ||
                       session.state == SessionState::ending;
    if (!begun || credential->end_sessions) over.emplace_back(number, why_revoked(session.credential));
  }
  for (const auto& [number, why] : over) parts_.sessions.stop(number, {why, StopKind::revoked});
}

JobOfCredential ConnectionManager::job_of(const std::string& id) const {
  const Credential* credential = identity_ ? identity_->credentials().find(id) : nullptr;
  return credential ? JobOfCredential{credential->job, credential->gpus} : JobOfCredential{};
}

tl::expected<Credential, std::string> ConnectionManager::credential_of_token(const std::string& token) {
  refresh_identity();
  const Credential* credential = identity_ ? identity_->credentials().find_token(token) : nullptr;
  if (!credential) return tl::unexpected(std::string("this is neither a token nor a code of this server"));
  if (!credential->job.empty()) return tl::unexpected(std::string("the token of a job signs nobody in"));
  std::string why = why_invalid(*credential, std::chrono::system_clock::now());
  if (!why.empty()) return tl::unexpected("this token " + why);
  return *credential;
}

std::variant<ChosenTenant, RefusedTenant> ConnectionManager::tenant_of(const Shown& shown) {
  refresh_identity();
  return choose_tenant(shown, identity_ ? &identity_->credentials() : nullptr, std::chrono::system_clock::now());
}

bool ConnectionManager::counts(const std::string& id) {
  refresh_identity();
  const Credential* credential = identity_ ? identity_->credentials().find(id) : nullptr;
  return credential && why_invalid(*credential, std::chrono::system_clock::now()).empty();
}

std::string ConnectionManager::why_revoked(const std::string& id) const {
  const Credential* credential = identity_ && !id.empty() ? identity_->credentials().find(id) : nullptr;
  if (!credential || !credential->revoked) return {};
  return fmt::format("the {} of tenant {} was revoked on {}",
                     credential->kind == CredentialKind::token ? "token" : "certificate", credential->tenant,
                     to_words(*credential->revoked));
}

// --- callers that are known ----------------------------------------------------------------------------------------

namespace {

LoginRequest wish_of(const ipc::Login& request) {
  return {.tenant = request.tenant,
          .user = request.user,
          .gpus = request.gpus,
          .memory_bytes = request.memory_bytes,
          .program = request.program,
          .host = request.host,
          .client_pid = request.process_id,
          .peer = request.peer,
          .security = request.security,
          .credential = request.credential,
          .management = request.management,
          .gpu_type = request.gpu_type};
}

}  // namespace

void ConnectionManager::requested(ipc::Login request) {
  refresh_identity();
  if (refused_as_revoked(request)) return;
  if (!request.query.empty()) return queried(request);
  if (!request.resume.empty()) return requested_again(request);
  const ipc::ConnectionId connection = request.connection;
  connections_[connection] = {};
  LoginRequest wish = wish_of(request);
  auto answer = [this, connection](scheduler::SessionId number, const AdmissionAnswer& what) {
    if (auto found = connections_.find(connection); found != connections_.end()) found->second = number;
    answered(connection, what);
  };
  std::optional<scheduler::SessionId> session;
  if (!request.ticket.empty()) session = parts_.sessions.return_to_queue(request.ticket, wish, answer);
  if (!session) session = parts_.sessions.request(std::move(wish), answer);
  if (auto found = connections_.find(connection); found != connections_.end()) found->second = *session;
}

// Answers a tenant's query about its own sessions; the query takes no place and is no session.
void ConnectionManager::queried(const ipc::Login& request) {
  if (!query_budget_.take(request.tenant)) {
    std::string why = fmt::format("{}: {} questions at once are answered, and {} a second; try again",
                                  wire::kAsksTooOften, kQueriesAtOnce, 1000 / kQueryRefillMs);
    notify({request.peer, "query", why, request.tenant, request.credential, 0});
    return login_.refused(request.connection, why);
  }
  QueryAnswer answer = query_ ? query_(wish_of(request), request.query)
                              : QueryResult(tl::unexpect, "this server does not answer queries");
  const ipc::ConnectionId connection = request.connection;
  if (!answer.later) return answer_query(connection, answer.now);
  const auto waiting =
      std::ranges::count(queries_, request.tenant, &std::pair<const ipc::ConnectionId, std::string>::second);
  if (size_t(waiting) >= kQueriesWaitingPerTenantMax)
    return login_.refused(connection, fmt::format("{} questions of the tenant wait for their answers; try again",
                                                  kQueriesWaitingPerTenantMax));
  queries_[connection] = request.tenant;
  answer.later(lifetime_.guard([this, connection](const QueryResult& result) {
    if (queries_.erase(connection)) answer_query(connection, result);
  }));
  keep_queries_waiting();
}

void ConnectionManager::answer_query(ipc::ConnectionId connection, const QueryResult& result) {
  if (result && result->size() <= kQueryAnswerBytesMax) login_.told(connection, *result);
  else login_.refused(connection, result ? "the answer is too long" : result.error());
}

void ConnectionManager::keep_queries_waiting() {
  if (queries_.empty() || std::exchange(query_timer_runs_, true)) return;
  query_timer_.expires_after(std::chrono::milliseconds(kQueryNotifyMs));
  query_timer_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    query_timer_runs_ = false;
    if (error) return;
    for (const auto& [connection, tenant] : queries_) login_.answer_follows(connection);
    keep_queries_waiting();
  }));
}

// Neither the queue nor quotas apply: the session keeps its resources. Its worker verifies that this is its own client.
void ConnectionManager::requested_again(const ipc::Login& request) {
  auto session = parts_.sessions.resumable(request.resume, request.tenant);
  if (!session) {
    notify({request.peer, "resume", session.error(), request.tenant, request.credential, 0});
    return login_.refused(request.connection, session.error());
  }
  if (!parts_.sessions.takes_connections((*session)->number)) {
    const char* why = "the session's worker accepts no connections: too many are waiting for it, and it reads none";
    notify({request.peer, "resume", why, request.tenant, request.credential, 0});
    return login_.refused(request.connection, why);
  }
  returning_[request.connection] = (*session)->number;
  login_.admitted(request.connection);
}

bool ConnectionManager::refused_as_revoked(const ipc::Login& request) {
  std::string why = why_revoked(request.credential);
  if (why.empty()) return false;
  notify({request.peer, name_of(RefusalKind::revoked), why, request.tenant, request.credential, 0});
  login_.refused(request.connection, why);
  return true;
}

void ConnectionManager::answered(ipc::ConnectionId connection, const AdmissionAnswer& answer) {
  auto found = connections_.find(connection);
  if (found == connections_.end()) return;
  if (auto* queued = std::get_if<AdmissionQueued>(&answer)) {
    const SessionRecord* session = parts_.registry.find(found->second);
    std::string ticket = session ? std::string(session->wire_id.begin(), session->wire_id.end()) : std::string();
    login_.queued({connection, uint32_t(queued->place), uint32_t(queued->waiting), queued->why, std::move(ticket)});
  } else if (auto* refused = std::get_if<AdmissionRefused>(&answer)) {
    login_.refused(connection, refused->reason);
    forget(connection);
  } else {
    login_.admitted(connection);
  }
}

void ConnectionManager::gone(ipc::ConnectionId connection, const std::string& why) {
  auto found = connections_.find(connection);
  if (found != connections_.end()) parts_.sessions.cancel(found->second, why);
  queries_.erase(connection);  // what was asked for goes on
  forget(connection);
}

void ConnectionManager::passed(ipc::Passed passed) {
  auto& [connection, socket, key] = passed;
  auto found = connections_.find(connection);
  auto back = returning_.find(connection);
  if (found != connections_.end() && socket) parts_.sessions.serve(found->second, std::move(socket), std::move(key));
  else if (found != connections_.end())  // the kernel had no descriptor for it
    parts_.sessions.cancel(found->second, "its connection could not be taken over: no descriptor was left");
  else if (back != returning_.end() && socket)
    parts_.sessions.carry_on(back->second, std::move(socket), std::move(key));
  forget(connection);
}

void ConnectionManager::forget(ipc::ConnectionId connection) {
  if (connections_.erase(connection) + returning_.erase(connection) == 0) return;
  if (empty()) events_.emptied();
}

// --- refusals ------------------------------------------------------------------------------------------------------

namespace {

// "192.0.2.7:41234" and "[2001:db8::7]:41234" without the port; an address without one is unchanged.
std::string address_of(const std::string& peer) { return peer.substr(0, peer.rfind(':')); }

}  // namespace

// Strangers can cause refusals at will. Many of one kind at once, or of one address over time, are reported as a count,
// so that nobody can fill a disk, or hide a wrong token among half-open connections.
void ConnectionManager::notify(ipc::TurnedAway refusal) {
  Told& kind = notified_[refusal.kind];
  auto now = std::chrono::steady_clock::now();
  kind.untold += refusal.untold;
  logged_of_address_.settle(now, [](const std::string&, uint64_t) {});  // their kind's count includes them
  if (!logged_of_address_.take(refusal.kind + ' ' + address_of(refusal.peer), now)) {
    ++kind.untold;
    return;
  }
  if (now - kind.since >= std::chrono::seconds(1)) {
    kind.since = now;
    kind.told = 0;
  }
  if (++kind.told > kLoginAuditsPerSecondMax) {
    ++kind.untold;
    return;
  }
  const uint32_t others = refusal.untold = std::exchange(kind.untold, 0);
  spdlog::warn("refused {}: {}{}", refusal.peer, refusal.reason, others ? fmt::format(" (and {} others)", others) : "");
  for (const RefusalObserver& observer : refusal_observers_) observer(refusal);
}

}  // namespace gpuwire::server
