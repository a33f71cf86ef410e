#include "server/cli/serve/observation.hpp"

#include <algorithm>
#include <fstream>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "server/cli/serve/serve_options.hpp"
#include "server/control/client/limits.hpp"
#include "server/control/client/socket_path.hpp"
#include "server/identity/identity_directory.hpp"
#include "server/log/escape.hpp"

namespace gpuwire::server {
namespace {

const SuspensionRequester kByUser{.name = "its user", .user = true};

}  // namespace

Observation::Observation(boost::asio::io_context& io, Broker& broker, Suspensions& suspensions, DrainedGpus& drains,
                         AuditLog audit_log, Reload reload)
    : broker_(broker),
      suspensions_(suspensions),
      drains_(drains),
      audit_log_(std::move(audit_log)),
      monitor_(broker.registry(), broker.tenants(), audit_log_),
      expiries_(io, {.directory = [&broker] { return broker.connections().identity_directory(); },
                     .serves =
                         [&broker](const std::string& name) {
                           const Tenant* tenant = broker.tenants().find(name);
                           return tenant && tenant->known;
                         },
                     .page = [this] { return web_certificate_; }}),
      answers_({.snapshot = [this] { return snapshot(); },
                .preview = [&broker](const LoginRequest& asking) { return broker.admission().preview(asking); },
                .end_session = [this](const LoginRequest& asking,
                                      uint64_t session) { return end_own_session(asking, session); },
                .suspend =
                    [this](const LoginRequest& asking, uint64_t session, ControlSources::Moved done) {
                      return move_own_session(asking, session, true, std::move(done));
                    },
                .resume =
                    [this](const LoginRequest& asking, uint64_t session, ControlSources::Moved done) {
                      return move_own_session(asking, session, false, std::move(done));
                    }}),
      control_(io, sources(std::move(reload))) {
  broker.sessions().add_part(monitor_);
  if (!audit_log_.file().empty()) answers_.read_usage(audit_log_.file().string());
  audit_log_.observe([this](std::string_view event, const LogFields& fields) {
    answers_.note(event, fields);
    if (web_answers_ && (event == "admitted" || event == "ended")) web_answers_->note(audit_line(event, fields));
  });
  broker.connections().set_query(
      [this](const LoginRequest& asking, const std::string& query) { return answers_.answer(asking, query); });
  broker.connections().observe_refusals([this](const ipc::TurnedAway& refusal) {
    LogFields fields{{"peer", refusal.peer}, {"reason", refusal.reason}};
    if (!refusal.credential.empty()) fields["credential"] = refusal.credential;
    if (refusal.untold) fields["others_untold"] = refusal.untold;
    monitor_.login_refused(refusal.tenant, refusal.kind, fields);
  });
}

tl::expected<std::unique_ptr<Observation>, std::string> Observation::start(boost::asio::io_context& io, Broker& broker,
                                                                           Suspensions& suspensions,
                                                                           DrainedGpus& drains,
                                                                           const Configuration& configuration,
                                                                           Reload reload) {
  AuditLog audit_log;
  if (!configuration.audit_log.empty()) {
    auto opened = AuditLog::open(configuration.audit_log);
    if (!opened) return tl::unexpected(opened.error());
    audit_log = std::move(*opened);
  }
  std::unique_ptr<Observation> observation(
      new Observation(io, broker, suspensions, drains, std::move(audit_log), std::move(reload)));
  observation->monitor_.server().sessions_max = configuration.sessions_max;
  if (auto opened = observation->open_control_socket(configuration); !opened) return tl::unexpected(opened.error());
  if (auto started = observation->start_metrics(io, configuration); !started) return tl::unexpected(started.error());
  if (auto started = observation->start_web(io, configuration); !started) return tl::unexpected(started.error());
  return observation;
}

tl::expected<void, std::string> Observation::open_control_socket(const Configuration& configuration) {
  if (!configuration.control_socket.empty()) return control_.listen(configuration.control_socket);
  auto path = default_control_socket();
  auto listening = path ? control_.listen(*path) : tl::expected<void, std::string>(tl::unexpect, path.error());
  if (!listening) spdlog::warn("{}; `gpuwire top`, `status` and `admin` cannot reach this server", listening.error());
  return {};
}

tl::expected<void, std::string> Observation::start_metrics(boost::asio::io_context& io,
                                                           const Configuration& configuration) {
  if (configuration.metrics_listen.empty()) return {};
  if (control_.path().empty()) return tl::unexpected(std::string("metrics_listen needs the control socket"));
  if (auto free = MetricsProcess::await_address(configuration.metrics_listen); !free) return free;
  std::error_code error;
  auto program = std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "gpuwire-metrics";
  metrics_ = std::make_unique<MetricsProcess>(
      io, program.string(),
      std::vector<std::string>{"--listen", configuration.metrics_listen, "--control", control_.path().string(),
                               "--log-format", configuration.log_format, "--with-parent"});
  return {};
}

tl::expected<void, std::string> Observation::start_web(boost::asio::io_context& io,
                                                       const Configuration& configuration) {
  if (configuration.web_listen.empty()) return {};
  if (!configuration.web_certificate.empty()) {
    auto certificate = PageCertificate::open(io, page_files(configuration), [this] {
      if (web_) web_->use_new_certificate();
      expiries_.start();
    });
    if (!certificate) return tl::unexpected(certificate.error());
    web_certificate_ = configuration.web_certificate;
    page_certificate_ = std::move(*certificate);
  }
  auto acceptor = WebProcess::listen(configuration.web_listen, page_certificate_ != nullptr);
  if (!acceptor) return tl::unexpected(acceptor.error());
  web_answers_ = std::make_unique<WebAnswers>(sources({}), web_credentials());
  if (!audit_log_.file().empty()) {
    std::ifstream lines = audit_tail(audit_log_.file().string());
    web_answers_->read_history(lines);
  }
  WebProcess::Answers answers{
      .page = [this](std::string_view line) { return web_answers_->answer(line); },
      .certificate = [this](std::string_view line) { return web_answers_->answer_certificate(line); }};
  web_ = std::make_unique<WebProcess>(io, beside_this_program("gpuwire-web"), std::move(*acceptor), std::move(answers),
                                      page_certificate_.get());
  return {};
}

WebCredentials Observation::web_credentials() {
  auto serves = [this](const std::string& name) {
    const Tenant* tenant = broker_.tenants().find(name);
    return tenant && tenant->known;
  };
  return {.of_token = [this, serves](const std::string& token) -> WebCredentials::Owner {
            auto credential = broker_.connections().credential_of_token(token);
            if (!credential) return tl::unexpected(credential.error());
            if (!serves(credential->tenant))
              return tl::unexpected(std::string("this token's tenant is not in the server's configuration"));
            return WebVisitor{credential->tenant, credential->id, credential->user};
          },
          .of_certificate = [this, serves](const ShownCertificate& certificate,
                                           const std::string& token) -> WebCredentials::Owner {
            const auto choice =
                broker_.connections().tenant_of({.tls = true, .certificate = certificate, .token = token});
            if (const auto* refused = std::get_if<RefusedTenant>(&choice)) return tl::unexpected(refused->reason);
            const auto& chosen = std::get<ChosenTenant>(choice);
            if (!serves(chosen.tenant))
              return tl::unexpected(std::string("this certificate's tenant is not in the server's configuration"));
            return WebVisitor{chosen.tenant, chosen.credential, chosen.user};
          },
          .counts =
              [this, serves](const WebVisitor& visitor) {
                return serves(visitor.tenant) && broker_.connections().counts(visitor.credential);
              }};
}

tl::expected<WebCode, std::string> Observation::make_web_code() {
  if (!web_) return tl::unexpected(std::string("this server has no web page: web_listen is not configured"));
  return web_answers_->make_code().map([this](const std::string& code) {
    return WebCode{code, web_->url(), uint64_t(std::chrono::seconds(kWebCodeTime).count())};
  });
}

Snapshot Observation::snapshot() {
  monitor_.server().certificates = expiries_.figures();
  monitor_.server().certificates_left_out = expiries_.left_out();
  Snapshot now = monitor_.snapshot();
  answers_.add_starts(
      now, [this](uint64_t session) { return broker_.admission().awaited_gpus(scheduler::SessionId(session)); });
  for (DeviceMetrics& device : now.devices)
    if (drains_.is_drained(device.index))
      device.drain = drains_.has_memory_of_sessions(device.index) ? "draining" : "drained";
  return now;
}

ControlSources Observation::sources(Reload reload) {
  return {
      .snapshot =
          [this] {
            Snapshot now = snapshot();
            if (totals_) totals_->note(now);
            return now;
          },
      .reload = std::move(reload),
      .end_session =
          [this](uint64_t session, const std::string& reason) {
            return broker_.sessions().stop(scheduler::SessionId(session), reason);
          },
      .end_tenant = [this](const std::string& tenant, const std::string& reason) { return end_tenant(tenant, reason); },
      .revoked = [this](const std::string& directory,
                        const std::string& identity) { return revoked(directory, identity); },
      .suspend =
          [this](uint64_t session, ControlSources::Moved done) {
            suspensions_.suspend(scheduler::SessionId(session), std::move(done));
          },
      .resume =
          [this](uint64_t session, ControlSources::Moved done) {
            suspensions_.resume(scheduler::SessionId(session), std::move(done));
          },
      .suspend_for_user =
          [this](uint64_t session, ControlSources::Moved done) {
            suspensions_.suspend(scheduler::SessionId(session), kByUser, std::move(done));
          },
      .sessions_of = [this](const std::string& tenant) { return sessions_of(tenant); },
      .drain = [this](uint64_t gpu) { return drained(gpu, &DrainedGpus::drain); },
      .undrain = [this](uint64_t gpu) { return drained(gpu, &DrainedGpus::undrain); },
      .drain_of = [this](uint64_t gpu) { return drained(gpu, &DrainedGpus::drain_of); },
      .web_code = [this] { return make_web_code(); },
      .tenants_of_user = [this](uid_t uid) { return tenants_of_user(uid); },
      .audit = [this](std::string_view event, const LogFields& fields) { audit_log_.write(event, fields); }};
}

tl::expected<GpuDrain, std::string> Observation::drained(
    uint64_t gpu, tl::expected<DrainedGpus::Drain, std::string> (DrainedGpus::*change)(scheduler::DeviceIndex)) {
  const auto index = scheduler::DeviceIndex(std::min<uint64_t>(gpu, UINT32_MAX));
  return (drains_.*change)(index).map([](const DrainedGpus::Drain& drain) {
    GpuDrain out{.drained = drain.drained, .changed = drain.changed, .sessions = {}};
    for (const DrainedGpus::Session& one : drain.sessions)
      out.sessions.push_back({uint64_t(one.number), one.away, one.text});
    return out;
  });
}

std::vector<std::string> Observation::tenants_of_user(uid_t user) const {
  std::string tenant = broker_.connections().unix_tenant_of(user);
  return tenant.empty() ? std::vector<std::string>{} : std::vector{std::move(tenant)};
}

std::optional<size_t> Observation::revoked(const std::string& directory, const std::string& identity) {
  std::error_code error;
  const std::filesystem::path own = broker_.connections().identity_directory();
  if (own.empty() || std::filesystem::weakly_canonical(own, error) != directory) return std::nullopt;
  broker_.connections().refresh_identity();
  const auto& all = broker_.registry().all();
  return size_t(std::count_if(all.begin(), all.end(), [&](const auto& one) {
    return one.second.credential == identity && one.second.state == SessionState::ending;
  }));
}

std::optional<std::vector<uint64_t>> Observation::sessions_of(const std::string& tenant) const {
  std::vector<uint64_t> sessions;
  for (const auto& [number, session] : broker_.registry().all())
    if (session.tenant == tenant) sessions.push_back(uint64_t(number));
  const Tenant* known = broker_.tenants().find(tenant);
  if (sessions.empty() && !(known && known->known)) return std::nullopt;
  return sessions;
}

std::optional<size_t> Observation::end_tenant(const std::string& tenant, const std::string& reason) {
  const auto sessions = sessions_of(tenant);
  if (!sessions) return std::nullopt;
  return size_t(std::ranges::count_if(
      *sessions, [&](uint64_t session) { return broker_.sessions().stop(scheduler::SessionId(session), reason); }));
}

bool Observation::is_own(const LoginRequest& asking, uint64_t number) const {
  const SessionRecord* session = broker_.registry().find(scheduler::SessionId(number));
  if (!session || session->tenant != asking.tenant || session->management) return false;
  return asking.user.empty() || session->user == asking.user;
}

bool Observation::end_own_session(const LoginRequest& asking, uint64_t number) {
  if (!is_own(asking, number)) return false;
  const std::string reason = fmt::format("ended by gpuwire end on {}", asking.host.empty() ? asking.peer : asking.host);
  if (!broker_.sessions().stop(scheduler::SessionId(number), reason)) return false;
  LogFields fields{{"session", number}, {"tenant", asking.tenant}, {"peer", asking.peer}, {"reason", reason}};
  if (!asking.user.empty()) fields["user"] = asking.user;
  audit_log_.write("end_asked", fields);
  return true;
}

bool Observation::move_own_session(const LoginRequest& asking, uint64_t number, bool suspend,
                                   ControlSources::Moved done) {
  if (!is_own(asking, number)) return false;
  LogFields fields{{"session", number}, {"tenant", asking.tenant}, {"peer", asking.peer}};
  if (!asking.user.empty()) fields["user"] = asking.user;
  auto moved = [this, fields, suspend, done = std::move(done)](const tl::expected<std::string, std::string>& result) {
    LogFields line = fields;
    line[result ? "result" : "reason"] = escaped(result ? *result : result.error()).substr(0, kControlReasonBytesMax);
    audit_log_.write(suspend ? "suspend_asked" : "resume_asked", line);
    done(result);
  };
  if (suspend) suspensions_.suspend(scheduler::SessionId(number), kByUser, std::move(moved));
  else suspensions_.resume(scheduler::SessionId(number), std::move(moved));
  return true;
}

void Observation::listening(std::string where, std::string devices) {
  monitor_.server().listen.push_back(std::move(where));
  monitor_.server().devices = std::move(devices);
  expiries_.start();
}

void Observation::reloaded(const tl::expected<std::string, ReloadRefused>& result) {
  if (result) expiries_.start();  // of other tenants, or another identity
  audit_log_.write("reload", result ? LogFields{{"result", *result}}
                                    : LogFields{{"result", "refused"}, {"errors", result.error().lines}});
}

void Observation::reopen_files() {
  if (auto reopened = audit_log_.reopen(); !reopened)
    spdlog::error("{}; lines are still written to the file that was open", reopened.error());
}

}  // namespace gpuwire::server
