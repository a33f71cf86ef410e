#include "server/control/web/web_answers.hpp"

#include <algorithm>
#include <istream>

#include <fmt/format.h>

#include "protocol/units/json.hpp"
#include "server/control/client/limits.hpp"
#include "server/control/requests.hpp"
#include "server/identity/register.hpp"
#include "server/log/escape.hpp"

namespace gpuwire::server {
namespace {

constexpr double kDayS = 24 * 3600, kMonthS = 30 * kDayS;

std::string text_in(const Json& request, const char* name) {
  auto found = request.find(name);
  return found != request.end() && found->is_string() ? found->get<std::string>() : std::string();
}

Json signed_out() {
  Json answer = failed_answer("you are signed out");
  answer["signed_out"] = true;
  return answer;
}

Json about(const WebVisitor& visitor) {
  return {{"ok", true}, {"tenant", visitor.tenant}, {"user", visitor.user}, {"administrator", visitor.administrator()}};
}

std::string name_of(const WebVisitor& visitor) {
  return visitor.administrator() ? "the administrator" : "tenant " + label_of(visitor.tenant, visitor.user);
}

bool may_end(const WebVisitor& visitor, const SessionMetrics& session) {
  if (visitor.administrator()) return true;
  return session.tenant == visitor.tenant && (visitor.user.empty() || session.user == visitor.user);
}

// Adds the use of running sessions.
void add_running(GpuUse& use, const Snapshot& snapshot, double since_unix_s) {
  for (const SessionMetrics& session : snapshot.sessions) {
    SpentTime spent{.begun_unix_s = session.since_unix_s,
                    .ended_unix_s = snapshot.taken_unix_s,
                    .tenant = session.tenant,
                    .gpu_s = double(session.gpu_time_ns) / 1e9};
    for (const SessionDeviceMetrics& device : session.devices) spent.gpus.push_back(device.device);
    add_use(use, spent, since_unix_s, snapshot.taken_unix_s);
  }
}

}  // namespace

WebAnswers::WebAnswers(ControlSources sources, WebCredentials credentials, Clock clock)
    : sources_(std::move(sources)), clock_(clock), sign_ins_(std::move(credentials), clock) {}

Json WebAnswers::answer(std::string_view line) {
  const Json request = parse_ordered_json(line);
  if (!request.is_object()) return failed_answer("a request is one JSON object on one line");
  const std::string command = text_in(request, "command"), ticket = text_in(request, "ticket");
  if (command == "sign_in") return sign_in(request);
  const WebVisitor* visitor = sign_ins_.find(ticket);
  if (!visitor) return signed_out();
  if (command == "view") return view(request, *visitor);
  if (command == "end") return end(request, *visitor);
  if (command == "suspend")
    return move(request, *visitor,
                {"suspend", "suspend_asked", visitor->administrator() ? sources_.suspend : sources_.suspend_for_user});
  if (command == "resume") return move(request, *visitor, {"resume", "resume_asked", sources_.resume});
  if (command != "sign_out") return failed_answer("there is no such command");
  sign_ins_.sign_out(ticket);
  return {{"ok", true}};
}

Json WebAnswers::answer_certificate(std::string_view line) {
  const Json request = parse_ordered_json(line);
  if (!request.is_object() || text_in(request, "command") != "certificate")
    return failed_answer("a request is one JSON object on one line");
  ShownCertificate shown{.serial = text_in(request, "serial"),
                         .tenant = text_in(request, "tenant"),
                         .verify_text = text_in(request, "fault"),
                         .expires = text_in(request, "expires")};
  auto error = request.find("error");
  if (error == request.end() || !error->is_number_integer()) return failed_answer("a certificate without a result");
  shown.verify_error = error->get<int>();
  auto grant = sign_ins_.make_grant(shown);
  if (!grant) {
    if (sources_.audit)
      sources_.audit("web_refused",
                     {{"peer", text_in(request, "peer")}, {"credential", shown.serial}, {"reason", grant.error()}});
    return failed_answer(grant.error());
  }
  return {{"ok", true}, {"grant", grant->text}, {"holder", label_of(grant->visitor.tenant, grant->visitor.user)}};
}

Json WebAnswers::sign_in(const Json& request) {
  const std::string secret = text_in(request, "secret"), grant = text_in(request, "grant");
  auto ticket = sign_ins_.sign_in(secret, grant);
  LogFields fields{{"peer", text_in(request, "peer")}};
  if (!ticket) {
    fields["reason"] = ticket.error();
    if (sources_.audit) sources_.audit("web_refused", fields);
    return failed_answer(ticket.error());
  }
  if (!ticket->visitor.administrator()) {
    fields["tenant"] = ticket->visitor.tenant;
    fields["credential"] = ticket->visitor.credential;
    if (!ticket->visitor.user.empty()) fields["user"] = ticket->visitor.user;
  }
  fields["administrator"] = ticket->visitor.administrator();
  if (sources_.audit) sources_.audit("web_sign_in", fields);
  Json answer = about(ticket->visitor);
  answer["ticket"] = ticket->text;
  return answer;
}

const Snapshot& WebAnswers::snapshot() {
  const auto now = clock_();
  if (!snapshot_ || now - snapshot_->first >= kWebFreshTime) snapshot_.emplace(now, sources_.snapshot());
  return snapshot_->second;
}

const WebAnswers::Past& WebAnswers::past() {
  const auto now = clock_();
  if (!past_ || now - past_->made >= kWebHistoryFreshTime) {
    const double until = snapshot().taken_unix_s;
    past_.emplace(Past{now, until, history_.since(until - kDayS), history_.since(until - kMonthS)});
  }
  return *past_;
}

void WebAnswers::read_history(std::istream& audit_log) {
  for (std::string line; std::getline(audit_log, line);) {
    recent_.add_line(line);
    history_.add_line(line);
  }
}

// Adds an ended session to the cached sums at once, because the running sessions do not contain it any more.
void WebAnswers::note(std::string_view audit_line) {
  recent_.add_line(audit_line);
  UseHistory last;
  if (!history_.add_line(audit_line) || !past_ || !last.add_line(audit_line)) return;
  for (auto [sum, span_s] : {std::pair(&past_->day, kDayS), std::pair(&past_->month, kMonthS)})
    for (const auto& [who, gpu_s] : last.since(past_->until_unix_s - span_s)) (*sum)[who] += gpu_s;
  snapshot_.reset();
}

// A tenant sees the other tenants' use as one row without a name.
Json WebAnswers::use(bool month, const WebVisitor& visitor) {
  GpuUse use = month ? past().month : past().day;
  add_running(use, snapshot(), snapshot().taken_unix_s - (month ? kMonthS : kDayS));
  GpuUse shown;
  for (const auto& [key, gpu_s] : use) {
    const bool named = visitor.administrator() || key.first == visitor.tenant;
    shown[{named ? key.first : std::string(), key.second}] += gpu_s;
  }
  Json rows = Json::array();
  for (const auto& [key, gpu_s] : shown) rows.push_back({{"tenant", key.first}, {"gpu", key.second}, {"gpu_s", gpu_s}});
  return rows;
}

// An administrator's visitor has no tenant, and sees all.
Json WebAnswers::ended(const WebVisitor& visitor) const {
  Json rows = Json::array();
  for (const EndedSession* one : recent_.newest(visitor.tenant, kWebEndedMax))
    rows.push_back({{"session", one->session},
                    {"tenant", one->tenant},
                    {"user", one->user},
                    {"program", one->program},
                    {"host", one->host},
                    {"cause", one->cause},
                    {"gpus", one->gpus},
                    {"begun_unix_s", one->begun_unix_s},
                    {"ended_unix_s", one->ended_unix_s},
                    {"gpu_s", one->gpu_s},
                    {"waited_s", one->waited_s},
                    {"waited_for", one->waited_for}});
  return rows;
}

Json WebAnswers::view(const Json& request, const WebVisitor& visitor) {
  if (!sources_.snapshot) return failed_answer("the server is not ready");
  Json answer = about(visitor);
  Snapshot shown = snapshot();
  add_move_failures(shown, visitor);
  if (!visitor.administrator()) shown = own_snapshot(std::move(shown), {visitor.tenant}, visitor.user);
  if (shown.sessions.size() > kSessionsShownMax) {
    shown.server.sessions_left_out = shown.sessions.size() - kSessionsShownMax;
    shown.sessions.resize(kSessionsShownMax);
  }
  answer["snapshot"] = to_json(shown);
  if (request.value("history", Json(false)) == true)
    answer["history"] = {{"day", use(false, visitor)}, {"month", use(true, visitor)}, {"ended", ended(visitor)}};
  return answer;
}

Json WebAnswers::end(const Json& request, const WebVisitor& visitor) {
  auto number = request.find("session");
  if (number == request.end() || !number->is_number_unsigned()) return failed_answer("end needs a session's number");
  const auto id = number->get<uint64_t>();
  // A fresh snapshot: it has sessions that have just begun. A session of another tenant or user does not exist for this
  // visitor.
  const Snapshot now = sources_.snapshot();
  auto session = std::ranges::find(now.sessions, id, &SessionMetrics::id);
  const bool own = session != now.sessions.end() && may_end(visitor, *session);
  const std::string reason = fmt::format("ended on the web page by {}", name_of(visitor));
  if (!own || !sources_.end_session(id, reason)) return failed_answer(fmt::format("there is no session {}", id));
  LogFields fields{{"session", id}, {"tenant", session->tenant}, {"by", "web page"}, {"reason", reason}};
  if (!session->user.empty()) fields["user"] = session->user;
  if (sources_.audit) sources_.audit("end_asked", fields);
  snapshot_.reset();
  return {{"ok", true}, {"ended", 1}};
}

// The answer does not wait for the move, which may take a minute: the page shows the session's state meanwhile, and the
// reason if it has not moved.
Json WebAnswers::move(const Json& request, const WebVisitor& visitor, const Move& move) {
  auto number = request.find("session");
  if (number == request.end() || !number->is_number_unsigned())
    return failed_answer(fmt::format("{} needs a session's number", move.word));
  const auto id = number->get<uint64_t>();
  if (!move.begin) return failed_answer("this server cannot suspend sessions");
  LogFields fields{{"session", id}, {"by", "web page"}};
  if (!visitor.administrator()) {
    const Snapshot now = sources_.snapshot();  // fresh, as for end()
    auto session = std::ranges::find(now.sessions, id, &SessionMetrics::id);
    if (session == now.sessions.end() || !may_end(visitor, *session))
      return failed_answer(fmt::format("there is no session {}", id));
    fields["tenant"] = visitor.tenant;
    if (!visitor.user.empty()) fields["user"] = visitor.user;
  }
  move_failures_.erase(id);
  move.begin(id, lifetime_.guard([this, id, fields, word = move.word, event = move.event](const auto& result) {
    const std::string text = escaped(result ? *result : result.error()).substr(0, kControlReasonBytesMax);
    LogFields line = fields;
    line[result ? "result" : "reason"] = text;
    if (sources_.audit) sources_.audit(event, line);
    if (!result) note_move_failure(id, fmt::format("{}: not done: {}", word, text));
    snapshot_.reset();
  }));
  snapshot_.reset();
  return {{"ok", true}};
}

void WebAnswers::note_move_failure(uint64_t session, std::string why) {
  const auto now = clock_();
  std::erase_if(move_failures_, [&](const auto& one) { return now - one.second.first >= kWebMoveFailureTime; });
  if (move_failures_.size() < kWebMoveFailuresMax) move_failures_[session] = {now, std::move(why)};
}

void WebAnswers::add_move_failures(Snapshot& shown, const WebVisitor& visitor) const {
  for (SessionMetrics& session : shown.sessions) {
    if (!may_end(visitor, session)) continue;
    auto found = move_failures_.find(session.id);
    if (found == move_failures_.end() || clock_() - found->second.first >= kWebMoveFailureTime) continue;
    if (session.warning.empty()) session.warning = found->second.second;
  }
}

}  // namespace gpuwire::server
