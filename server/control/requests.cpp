#include "server/control/requests.hpp"

#include <algorithm>
#include <array>
#include <memory>

#include <fmt/format.h>

#include "protocol/units/json.hpp"
#include "server/control/client/limits.hpp"
#include "server/log/escape.hpp"

namespace gpuwire::server {
namespace {

struct Asked {
  const Json& request;
  const ControlPeer& peer;
  const ControlSources& sources;
};

std::string text_member(const Json& request, const char* name) {
  auto found = request.find(name);
  return found != request.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::optional<uint64_t> number_member(const Json& request, const char* name) {
  auto found = request.find(name);
  if (found == request.end() || !found->is_number_unsigned()) return std::nullopt;
  return found->get<uint64_t>();
}

void audit(const Asked& asked, std::string_view event, LogFields fields) {
  if (!asked.sources.audit) return;
  LogFields who{{"by_uid", asked.peer.uid}, {"by_pid", asked.peer.pid}};
  who.update(fields);
  asked.sources.audit(event, who);
}

ControlAnswer answer_snapshot(const Asked& asked) { return {snapshot_answer(asked.peer, asked.sources)}; }

ControlAnswer answer_watch(const Asked& asked) {
  uint64_t interval = kWatchIntervalMs;
  if (asked.request.contains("interval_ms")) {
    auto said = number_member(asked.request, "interval_ms");
    if (!said || *said < kWatchIntervalMinMs || *said > kWatchIntervalMaxMs)
      return {failed_answer(
          fmt::format("interval_ms is a number from {} to {}", kWatchIntervalMinMs, kWatchIntervalMaxMs))};
    interval = *said;
  }
  return {{}, uint32_t(interval)};
}

ControlAnswer answer_reload(const Asked& asked) {
  if (!asked.sources.reload) return {failed_answer("this server has no configuration file")};
  audit(asked, "reload_asked", LogFields::object());
  const auto yes = asked.request.find("yes");
  auto changed = asked.sources.reload(yes != asked.request.end() && yes->is_boolean() && yes->get<bool>());
  if (changed) return {Json{{"ok", true}, {"changed", *changed}}};
  Json answer = failed_answer(changed.error().why);
  answer["errors"] = changed.error().lines;
  return {answer};
}

// The reason is shown on the client's terminal.
std::string reason_of(const Json& request) {
  std::string reason = escaped(text_member(request, "reason")).substr(0, kControlReasonBytesMax);
  return reason.empty() ? "ended by the administrator" : reason;
}

ControlAnswer answer_end(const Asked& asked) {
  auto session = number_member(asked.request, "session");
  std::string tenant = text_member(asked.request, "tenant");
  if (session.has_value() == !tenant.empty())
    return {failed_answer("end needs either a session's number or a tenant's name")};
  if (!asked.sources.end_session || !asked.sources.end_tenant)
    return {failed_answer("this server cannot end single sessions")};
  std::string reason = reason_of(asked.request);
  if (session) {
    if (!asked.sources.end_session(*session, reason))
      return {failed_answer(fmt::format("there is no session {}", *session))};
    audit(asked, "end_asked", {{"session", *session}, {"reason", reason}});
    return {Json{{"ok", true}, {"ended", 1}}};
  }
  auto ended = asked.sources.end_tenant(tenant, reason);
  if (!ended) return {failed_answer(fmt::format("this server has no tenant \"{}\"", escaped(tenant)))};
  audit(asked, "end_asked", {{"tenant", tenant}, {"sessions", *ended}, {"reason", reason}});
  return {Json{{"ok", true}, {"ended", *ended}}};
}

// The identity's files already revoke the credential; this request ends its sessions and records the administrator in
// the audit log.
ControlAnswer answer_revoked(const Asked& asked) {
  std::string tenant = text_member(asked.request, "tenant"), identity = text_member(asked.request, "identity");
  if (tenant.empty() || identity.empty()) return {failed_answer("revoked needs a tenant's name and what was revoked")};
  if (!asked.sources.revoked) return {failed_answer("this server has no identity")};
  auto ended = asked.sources.revoked(text_member(asked.request, "directory"), identity);
  if (!ended) return {failed_answer("this server uses another identity")};
  audit(asked, "revoked", {{"tenant", tenant}, {"identity", identity}, {"sessions", *ended}});
  return {Json{{"ok", true}, {"ended", *ended}}};
}

// The answers about all sessions of one request. The last of them sends the request's answer.
struct Moves {
  std::function<void(Json)> send;
  Json sessions = Json::array();
  ~Moves() {
    if (send) send(Json{{"ok", true}, {"sessions", std::move(sessions)}});
  }
};

// An answer takes the time of the moves.
ControlAnswer answer_move(const Asked& asked, const char* word, const char* event,
                          const std::function<void(uint64_t, ControlSources::Moved)>& move) {
  auto session = number_member(asked.request, "session");
  std::string tenant = text_member(asked.request, "tenant");
  if (session.has_value() == !tenant.empty())
    return {failed_answer(fmt::format("{} needs either a session's number or a tenant's name", word))};
  if (!move || !asked.sources.sessions_of) return {failed_answer("this server cannot suspend sessions")};
  auto sessions = session ? std::vector<uint64_t>{*session} : asked.sources.sessions_of(tenant);
  if (!sessions) return {failed_answer(fmt::format("this server has no tenant \"{}\"", escaped(tenant)))};
  return {.json = {},
          .later = [&sources = asked.sources, peer = asked.peer, request = asked.request, event, move,
                    sessions = std::move(*sessions)](std::function<void(Json)> send) {
            auto moves = std::make_shared<Moves>(std::move(send));
            for (uint64_t number : sessions)
              move(number, [&sources, peer, request, event, moves, number](const auto& result) {
                // A reason may be its worker's own words.
                const std::string text = escaped(result ? *result : result.error()).substr(0, kControlReasonBytesMax);
                moves->sessions.push_back({{"session", number}, {"done", result.has_value()}, {"text", text}});
                audit({request, peer, sources}, event, {{"session", number}, {result ? "result" : "reason", text}});
              });
          }};
}

ControlAnswer answer_suspend(const Asked& asked) {
  return answer_move(asked, "suspend", "suspend_asked", asked.sources.suspend);
}
ControlAnswer answer_resume(const Asked& asked) {
  return answer_move(asked, "resume", "resume_asked", asked.sources.resume);
}

ControlAnswer answer_drain_by(const Asked& asked, const char* word, const char* event,
                              const std::function<tl::expected<GpuDrain, std::string>(uint64_t)>& source) {
  auto gpu = number_member(asked.request, "gpu");
  if (!gpu) return {failed_answer(fmt::format("{} needs a GPU's number", word))};
  if (!source) return {failed_answer("this server cannot drain GPUs")};
  auto drain = source(*gpu);
  if (!drain) return {failed_answer(drain.error())};
  Json sessions = Json::array();
  for (const GpuDrain::Session& one : drain->sessions) {
    // A reason may be its worker's own words.
    const std::string text = escaped(one.text).substr(0, kControlReasonBytesMax);
    sessions.push_back({{"session", one.id}, {"away", one.away}, {"text", text}});
  }
  if (drain->changed) audit(asked, event, {{"gpu", *gpu}, {"sessions", drain->sessions.size()}});
  return {Json{{"ok", true},
               {"gpu", *gpu},
               {"drained", drain->drained},
               {"changed", drain->changed},
               {"sessions", std::move(sessions)}}};
}

ControlAnswer answer_drain(const Asked& asked) {
  return answer_drain_by(asked, "drain", "drain_asked", asked.sources.drain);
}
ControlAnswer answer_undrain(const Asked& asked) {
  return answer_drain_by(asked, "undrain", "undrain_asked", asked.sources.undrain);
}
ControlAnswer answer_drain_of(const Asked& asked) {
  return answer_drain_by(asked, "drain_of", "", asked.sources.drain_of);
}

ControlAnswer answer_web_code(const Asked& asked) {
  if (!asked.sources.web_code) return {failed_answer("this server has no web page: web_listen is not configured")};
  auto code = asked.sources.web_code();
  if (!code) return {failed_answer(code.error())};
  audit(asked, "web_code_made", LogFields::object());
  return {Json{{"ok", true}, {"code", code->code}, {"url", code->url}, {"seconds", code->seconds}}};
}

struct Command {
  std::string_view name;
  bool everything;  // only for peers that may do everything
  ControlAnswer (*answer)(const Asked&);
};
constexpr std::array kCommands{
    Command{"snapshot", false, answer_snapshot}, Command{"watch", false, answer_watch},
    Command{"reload", true, answer_reload},      Command{"end", true, answer_end},
    Command{"revoked", true, answer_revoked},    Command{"web_code", true, answer_web_code},
    Command{"suspend", true, answer_suspend},    Command{"resume", true, answer_resume},
    Command{"drain", true, answer_drain},        Command{"undrain", true, answer_undrain},
    Command{"drain_of", true, answer_drain_of},
};

}  // namespace

Snapshot own_snapshot(Snapshot snapshot, const std::vector<std::string>& tenants, const std::string& user) {
  auto foreign = [&](const std::string& name) {
    return std::find(tenants.begin(), tenants.end(), name) == tenants.end();
  };
  std::erase_if(snapshot.tenants, [&](const TenantMetrics& tenant) { return foreign(tenant.name); });
  std::erase_if(snapshot.sessions, [&](const SessionMetrics& session) { return foreign(session.tenant); });
  std::erase_if(snapshot.server.certificates, [&](const CertificateMetrics& one) {
    return one.of == "tenant" && (foreign(one.tenant) || (!user.empty() && one.user != user));
  });
  snapshot.server.certificates_left_out = 0;
  if (!user.empty())
    for (TenantMetrics& tenant : snapshot.tenants)
      std::erase_if(tenant.users, [&](const UserMetrics& other) { return other.name != user; });
  snapshot.refused.clear();
  return snapshot;
}

Json failed_answer(const std::string& error) { return {{"ok", false}, {"error", error}}; }

Json snapshot_answer(const ControlPeer& peer, const ControlSources& sources) {
  if (!sources.snapshot) return failed_answer("the server is not ready");
  Snapshot snapshot = sources.snapshot();
  if (!peer.everything) snapshot = own_snapshot(std::move(snapshot), peer.tenants);
  if (snapshot.sessions.size() > kSessionsShownMax) {
    snapshot.server.sessions_left_out = snapshot.sessions.size() - kSessionsShownMax;
    snapshot.sessions.resize(kSessionsShownMax);
  }
  return {{"ok", true}, {"snapshot", to_json(snapshot)}};
}

ControlAnswer answer_request(std::string_view line, const ControlPeer& peer, const ControlSources& sources) {
  if (!peer.everything && peer.tenants.empty())
    return {failed_answer("only root, the server's user and the users of its tenants may ask this server")};
  Json request = parse_ordered_json(line);
  if (!request.is_object()) return {failed_answer("a request is one JSON object on one line")};
  std::string name = text_member(request, "command");
  auto command = std::find_if(kCommands.begin(), kCommands.end(), [&](const Command& one) { return one.name == name; });
  if (command == kCommands.end()) return {failed_answer("there is no such command")};
  if (command->everything && !peer.everything)
    return {failed_answer(fmt::format("{} is for root and the server's user", command->name))};
  return command->answer({request, peer, sources});
}

}  // namespace gpuwire::server
