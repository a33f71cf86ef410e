#include "server/control/usage/usage.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "server/log/escape.hpp"

namespace gpuwire::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kDayBytes = 10;  // of "2026-11-23T17:00:00.000Z"

std::string hours(double seconds) { return fmt::format("{:.3f}", seconds / 3600); }
std::string gib(uint64_t bytes) { return fmt::format("{:.3f}", double(bytes) / double(1u << 30)); }

// RFC 4180; a name is the configuration's, and may come from an audit log that others wrote.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

}  // namespace

bool UsageBook::add_line(std::string_view line) {
  if (line.size() > kUsageLineBytesMax || line.find("\"ended\"") == std::string_view::npos) return false;
  auto json = Json::parse(line, nullptr, false);
  if (!json.is_object() || json.value("management", Json(false)) == true) return false;
  auto text = [&](const char* name) {
    auto found = json.find(name);
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  auto number = [&](const char* name) {
    auto found = json.find(name);
    return found != json.end() && found->is_number() ? std::max(0.0, found->get<double>()) : 0.0;
  };
  std::string time = text("time"), tenant = text("tenant");
  if (text("event") != "ended" || time.size() < kDayBytes || tenant.empty()) return false;
  add(time.substr(0, kDayBytes), tenant,
      {.sessions = 1,
       .gpu_s = number("gpu_seconds"),
       .session_s = number("seconds"),
       .peak_memory_bytes = uint64_t(number("peak_memory_bytes")),
       .bytes_in = uint64_t(number("bytes_in")),
       .bytes_out = uint64_t(number("bytes_out"))});
  return true;
}

void UsageBook::add(const std::string& day, const std::string& tenant, const Usage& usage) {
  Usage& sum = days_[{day, tenant}];
  sum.sessions += usage.sessions;
  sum.gpu_s += usage.gpu_s;
  sum.session_s += usage.session_s;
  sum.peak_memory_bytes = std::max(sum.peak_memory_bytes, usage.peak_memory_bytes);
  sum.bytes_in += usage.bytes_in;
  sum.bytes_out += usage.bytes_out;
  if (days_.size() > kUsageDaysMax) days_.erase(days_.begin());
}

void UsageBook::read(std::istream& lines) {
  for (std::string line; std::getline(lines, line);) add_line(line);
}

std::vector<std::pair<std::pair<std::string, std::string>, Usage>> UsageBook::days(const std::string& tenant,
                                                                                   const std::string& since) const {
  std::vector<std::pair<std::pair<std::string, std::string>, Usage>> found;
  for (const auto& [key, usage] : days_) {
    if (key.first >= since && (tenant.empty() || key.second == tenant)) found.emplace_back(key, usage);
  }
  return found;
}

std::string usage_text(const UsageBook& book, UsageFormat format, const std::string& tenant, const std::string& since) {
  const auto days = book.days(tenant, since);
  if (format == UsageFormat::json) {
    Json all = Json::array();
    for (const auto& [key, usage] : days)
      all.push_back({{"day", key.first},
                     {"tenant", key.second},
                     {"sessions", usage.sessions},
                     {"gpu_seconds", usage.gpu_s},
                     {"session_seconds", usage.session_s},
                     {"peak_memory_bytes", usage.peak_memory_bytes},
                     {"bytes_in", usage.bytes_in},
                     {"bytes_out", usage.bytes_out}});
    return all.dump(2, ' ', true, Json::error_handler_t::replace) + "\n";
  }
  if (format == UsageFormat::csv) {
    std::string text = "day,tenant,sessions,gpu_seconds,session_seconds,peak_memory_bytes,bytes_in,bytes_out\n";
    for (const auto& [key, usage] : days)
      text += fmt::format("{},{},{},{:.3f},{:.3f},{},{},{}\n", key.first, csv_field(key.second), usage.sessions,
                          usage.gpu_s, usage.session_s, usage.peak_memory_bytes, usage.bytes_in, usage.bytes_out);
    return text;
  }
  size_t name = 6;
  for (const auto& [key, usage] : days) name = std::max(name, escaped(key.second).size());
  std::string text = fmt::format("{:<10}  {:<{}}  {:>8}  {:>9}  {:>8}  {:>13}\n", "DAY", "TENANT", name, "SESSIONS",
                                 "GPU HOURS", "HOURS", "PEAK MEM. GiB");
  Usage sum;
  for (const auto& [key, usage] : days) {
    text += fmt::format("{:<10}  {:<{}}  {:>8}  {:>9}  {:>8}  {:>13}\n", escaped(key.first), escaped(key.second), name,
                        usage.sessions, hours(usage.gpu_s), hours(usage.session_s), gib(usage.peak_memory_bytes));
    sum.sessions += usage.sessions, sum.gpu_s += usage.gpu_s, sum.session_s += usage.session_s;
    sum.peak_memory_bytes = std::max(sum.peak_memory_bytes, usage.peak_memory_bytes);
  }
  if (days.size() > 1)
    text += fmt::format("{:<10}  {:<{}}  {:>8}  {:>9}  {:>8}  {:>13}\n", "total", "", name, sum.sessions,
                        hours(sum.gpu_s), hours(sum.session_s), gib(sum.peak_memory_bytes));
  return text;
}

}  // namespace gpuwire::server
