#include "server/cli/serve/tenant_answers.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <fstream>
#include <sstream>

#include "server/control/view/metrics_view.hpp"
#include "server/control/requests.hpp"

namespace gpuwire::server {
namespace {

constexpr uint64_t kIntervalMinNs = 200'000'000;  // two looks that are nearer make no rate

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::string indented(const Json& json) { return json.dump(2, ' ', true, Json::error_handler_t::replace) + "\n"; }

}  // namespace

void TenantAnswers::read_usage(const std::string& audit_log) {
  std::ifstream lines(audit_log, std::ios::ate);
  if (!lines) return;
  const auto bytes = uint64_t(lines.tellg());
  lines.seekg(std::streamoff(bytes > kUsageReadBytesMax ? bytes - kUsageReadBytesMax : 0));
  usage_.read(lines);  // a first line that is cut is none
}

void TenantAnswers::note(std::string_view event, const LogFields& fields) {
  if (event != "ended") return;
  LogFields line{{"time", utc_time(std::chrono::system_clock::now())}, {"event", event}};
  line.update(fields);
  usage_.add_line(json_line(line));
}

tl::expected<std::string, std::string> TenantAnswers::answer(const std::string& tenant, const std::string& query) {
  std::istringstream words(query);
  std::string view, format, width, order;
  words >> view >> format >> width >> order;
  unsigned columns = 0;
  std::from_chars(width.data(), width.data() + width.size(), columns);
  columns = std::min(columns, kAnswerColumnsMax);
  const bool json = format == "json";
  if (!json && format != "text" && !(format == "csv" && view == "usage"))
    return tl::unexpected(std::string("this server does not know that format"));
  if (view == "usage")
    return usage_text(usage_,
                      json              ? UsageFormat::json
                      : format == "csv" ? UsageFormat::csv
                                        : UsageFormat::text,
                      tenant);
  if (view == "top") return top(tenant, json, columns, sort_key_named(order).value_or(SortKey::gpu));
  if (view != "queue") return tl::unexpected(std::string("this server does not know that question"));
  const Snapshot own = own_snapshot(take_snapshot_(), {tenant});
  if (json) return indented(to_json(own).at("sessions"));
  std::vector<std::string> lines = session_lines(own, columns);
  if (lines.empty()) return "no program of tenant " + tenant + " runs or waits\n";
  lines.erase(lines.begin());  // the empty one before a table
  return joined(lines);
}

std::string TenantAnswers::top(const std::string& tenant, bool json, unsigned columns, SortKey sort) {
  Snapshot now = take_snapshot_();
  if (!last_ || now.taken_ns - last_->taken_ns >= kIntervalMinNs) before_ = std::exchange(last_, now);
  const Snapshot after = own_snapshot(std::move(now), {tenant}),
                 before = own_snapshot(before_ ? *before_ : *last_, {tenant});
  const Interval interval(before, after);
  return json ? dump(top_json(interval, sort)) + "\n" : joined(top_lines(interval, sort, columns));
}

}  // namespace gpuwire::server
