#include "server/cli/serve/tenant_answers.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <fstream>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "protocol/units/json.hpp"
#include "protocol/wire/questions.hpp"
#include "server/cli/serve/start_offer.hpp"
#include "server/control/client/limits.hpp"
#include "server/control/view/metrics_view.hpp"
#include "server/control/requests.hpp"
#include "server/log/escape.hpp"

namespace gpuwire::server {
namespace {

constexpr uint64_t kIntervalMinNs = 200'000'000;  // two snapshots that are closer give no rate

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// The error: these are no numbers, or too many.
tl::expected<std::vector<uint64_t>, std::string> sessions_in(std::istream& words) {
  std::vector<uint64_t> sessions;
  for (std::string word; words >> word;) {
    uint64_t session = 0;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), session);
    if (error != std::errc() || rest != word.data() + word.size() || sessions.size() == kSessionsNamedMax)
      return tl::unexpected(fmt::format("a question names sessions by their numbers, {} at most", kSessionsNamedMax));
    sessions.push_back(session);
  }
  return sessions;
}

// The lines about all sessions of one query. The last holder gives the answer.
class MoveLines {
 public:
  explicit MoveLines(QueryAnswer::Take take) : take_(std::move(take)) {}
  MoveLines(const MoveLines&) = delete;
  MoveLines& operator=(const MoveLines&) = delete;
  ~MoveLines() { take_(lines_); }

  // `text`: perhaps a worker's own words.
  void add(const char* word, uint64_t session, const std::string& text = {}) {
    lines_ += fmt::format("{} {}{}{}\n", word, session, text.empty() ? "" : " ",
                          escaped(text).substr(0, kControlReasonBytesMax));
  }

 private:
  const QueryAnswer::Take take_;
  std::string lines_;
};

std::string indented(const Json& json) { return dump_json(json, 2, true, JsonErrorHandler::replace) + "\n"; }

}  // namespace

std::ifstream audit_tail(const std::string& audit_log) {
  std::ifstream lines(audit_log, std::ios::ate);
  if (!lines) return lines;
  const auto bytes = uint64_t(lines.tellg());
  lines.seekg(std::streamoff(bytes > kUsageReadBytesMax ? bytes - kUsageReadBytesMax : 0));
  return lines;
}

std::string audit_line(std::string_view event, const LogFields& fields) {
  LogFields line{{"time", utc_time(std::chrono::system_clock::now())}, {"event", event}};
  line.update(fields);
  return json_line(line);
}

void TenantAnswers::read_usage(const std::string& audit_log) {
  std::ifstream lines = audit_tail(audit_log);
  if (lines) usage_.read(lines);  // a first line that is cut is none
}

void TenantAnswers::note(std::string_view event, const LogFields& fields) {
  if (event != "ended") return;
  usage_.add_line(audit_line(event, fields));
  if (!fields.contains("management") && fields.contains("seconds")) run_times_.add(fields["seconds"].get<double>());
}

QueryAnswer TenantAnswers::answer(const LoginRequest& asking, const std::string& query) {
  std::istringstream words(query);
  std::string view, format;
  words >> view >> format;
  if (view == "suspend" && format == "text") return move(asking, words, sources_.suspend);
  if (view == "resume" && format == "text") return move(asking, words, sources_.resume);
  return answer_now(asking, view, format, words);
}

QueryResult TenantAnswers::answer_now(const LoginRequest& asking, const std::string& view, const std::string& format,
                                      std::istream& words) {
  const std::string& tenant = asking.tenant;
  std::string width, order;
  if (view == "check" && format == "text") return check(asking);
  if (view == "end" && format == "text") return end(asking, words);
  words >> width >> order;
  unsigned columns = 0;
  std::from_chars(width.data(), width.data() + width.size(), columns);
  columns = std::min(columns, kAnswerColumnsMax);
  const bool json = format == "json";
  const bool by_user = view == "usage-by-user", since_day = view == "usage-since" || by_user;
  const bool of_usage = view == "usage" || since_day;
  if (!json && format != "text" && !(format == "csv" && of_usage))
    return tl::unexpected(std::string("this server does not know that format"));
  if (of_usage)
    return usage(asking,
                 json              ? UsageFormat::json
                 : format == "csv" ? UsageFormat::csv
                                   : UsageFormat::text,
                 since_day ? width : std::string(), by_user || order == "user" ? UsageBy::user : UsageBy::tenant);
  if (view == "top") return top(asking, json, columns, sort_key_named(order).value_or(SortKey::gpu));
  if (view == "me") {
    const Snapshot own = own_snapshot(sources_.snapshot(), {tenant});
    return json ? indented(tenant_json(own, tenant, asking.user)) : joined(tenant_lines(own, tenant, asking.user));
  }
  if (view != "queue") return tl::unexpected(std::string(wire::kUnknownQuestion));
  const Snapshot own = own_snapshot(sources_.snapshot(), {tenant});
  if (json) return indented(to_json(own).at("sessions"));
  std::vector<std::string> lines = session_lines(own, columns);
  if (lines.empty()) return "no program of tenant " + tenant + " runs or waits\n";
  lines.erase(lines.begin());  // the empty one before a table
  return joined(lines);
}

// By user: a user gets only the user's own rows; a caller without a user's name gets all rows of the tenant.
std::string TenantAnswers::usage(const LoginRequest& asking, UsageFormat format, const std::string& since,
                                 UsageBy by) const {
  UsageRows rows = usage_.days(asking.tenant, since, by);
  if (by == UsageBy::user && !asking.user.empty())
    std::erase_if(rows, [&](const auto& row) { return row.first.user != asking.user; });
  return usage_text(rows, format, by);
}

Snapshot TenantAnswers::take_snapshot() {
  Snapshot now = sources_.snapshot();
  if (!last_ || now.taken_ns - last_->taken_ns >= kIntervalMinNs) before_ = std::exchange(last_, now);
  return now;
}

std::string TenantAnswers::top(const LoginRequest& asking, bool json, unsigned columns, SortKey sort) {
  const Snapshot after = own_snapshot(take_snapshot(), {asking.tenant}, asking.user),
                 earlier = own_snapshot(before(), {asking.tenant}, asking.user);
  const Interval interval(earlier, after);
  return json ? dump(top_json(interval, sort)) + "\n" : joined(top_lines(interval, sort, columns));
}

std::string TenantAnswers::check(const LoginRequest& asking) {
  const AdmissionPreview preview = sources_.preview(asking);
  const Snapshot now = take_snapshot();
  std::optional<double> start_after_s;
  if (auto* queued = std::get_if<AdmissionQueued>(&preview.answer); queued && queued->awaits_end)
    start_after_s = run_times_.start_after_s(ages_s(now, preview.devices), queued->place);
  return start_offer(preview, Interval(before(), now), start_after_s);
}

void TenantAnswers::add_starts(Snapshot& snapshot, const AwaitedGpus& awaited_gpus) const {
  for (SessionMetrics& session : snapshot.sessions) {
    if (session.place == 0) continue;
    if (const std::vector<double> ages = ages_s(snapshot, awaited_gpus(session.id)); !ages.empty())
      session.start_in_s = run_times_.start_after_s(ages, session.place);
  }
}

QueryResult TenantAnswers::end(const LoginRequest& asking, std::istream& words) {
  const auto sessions = sessions_in(words);
  if (!sessions) return tl::unexpected(sessions.error());
  std::string told;
  for (uint64_t session : *sessions)
    told += fmt::format("{} {}\n", sources_.end_session(asking, session) ? "ended" : "unknown", session);
  return told;
}

QueryAnswer TenantAnswers::move(const LoginRequest& asking, std::istream& words, const TenantSources::Move& move) {
  auto sessions = sessions_in(words);
  if (!sessions) return QueryResult(tl::unexpect, sessions.error());
  return QueryAnswer([asking, move, sessions = std::move(*sessions)](const QueryAnswer::Take& take) {
    auto all = std::make_shared<MoveLines>(take);
    for (uint64_t session : sessions) {
      const bool own = move(asking, session, [all, session](const tl::expected<std::string, std::string>& result) {
        all->add(result ? "done" : "stays", session, result ? *result : result.error());
      });
      if (!own) all->add("unknown", session);
    }
  });
}

}  // namespace gpuwire::server
