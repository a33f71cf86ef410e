#include "server/control/usage/usage.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "protocol/units/json.hpp"
#include "server/control/usage/ended_line.hpp"
#include "server/log/escape.hpp"

namespace gpuwire::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kDayBytes = 10;  // of "2026-11-23T17:00:00.000Z"

std::string hours(double seconds) { return fmt::format("{:.3f}", seconds / 3600); }
std::string gib(uint64_t bytes) { return fmt::format("{:.3f}", double(bytes) / double(1u << 30)); }

// Quotes a field as RFC 4180 has it. Names come from the configuration, or from an audit log that others wrote.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

void add_to(Usage& sum, const Usage& usage) {
  sum.sessions += usage.sessions;
  sum.gpu_s += usage.gpu_s;
  sum.session_s += usage.session_s;
  sum.peak_memory_bytes = std::max(sum.peak_memory_bytes, usage.peak_memory_bytes);
  sum.bytes_in += usage.bytes_in;
  sum.bytes_out += usage.bytes_out;
}

}  // namespace

bool UsageBook::add_line(std::string_view text) {
  const auto line = read_ended_line(text);
  if (!line) return false;
  add({line->time.substr(0, kDayBytes), line->tenant, line->user}, {.sessions = 1,
                                                                    .gpu_s = line->gpu_s,
                                                                    .session_s = line->session_s,
                                                                    .peak_memory_bytes = line->peak_memory_bytes,
                                                                    .bytes_in = line->bytes_in,
                                                                    .bytes_out = line->bytes_out});
  return true;
}

void UsageBook::add(const UsageKey& key, const Usage& usage) {
  add_to(days_[key], usage);
  if (days_.size() > kUsageDaysMax) days_.erase(days_.begin());
}

void UsageBook::read(std::istream& lines) {
  for (std::string line; std::getline(lines, line);) add_line(line);
}

UsageRows UsageBook::days(const std::string& tenant, const std::string& since, UsageBy by) const {
  UsageRows found;
  for (const auto& [key, usage] : days_) {
    if (key.day < since || (!tenant.empty() && key.tenant != tenant)) continue;
    UsageKey row = key;
    if (by == UsageBy::tenant) row.user.clear();
    // The users of one tenant and day are adjacent.
    if (!found.empty() && found.back().first == row) add_to(found.back().second, usage);
    else found.emplace_back(std::move(row), usage);
  }
  return found;
}

namespace {

std::string usage_json(const UsageRows& rows, UsageBy by) {
  Json all = Json::array();
  for (const auto& [key, usage] : rows) {
    Json row{{"day", key.day}, {"tenant", key.tenant}};
    if (by == UsageBy::user) row["user"] = key.user;
    row["sessions"] = usage.sessions;
    row["gpu_seconds"] = usage.gpu_s;
    row["session_seconds"] = usage.session_s;
    row["peak_memory_bytes"] = usage.peak_memory_bytes;
    row["bytes_in"] = usage.bytes_in;
    row["bytes_out"] = usage.bytes_out;
    all.push_back(std::move(row));
  }
  return dump_json(all, 2, true, JsonErrorHandler::replace) + "\n";
}

std::string usage_csv(const UsageRows& rows, UsageBy by) {
  std::string text =
      fmt::format("day,tenant,{}sessions,gpu_seconds,session_seconds,peak_memory_bytes,bytes_in,bytes_out\n",
                  by == UsageBy::user ? "user," : "");
  for (const auto& [key, usage] : rows)
    text += fmt::format("{},{},{}{},{:.3f},{:.3f},{},{},{}\n", key.day, csv_field(key.tenant),
                        by == UsageBy::user ? csv_field(key.user) + "," : std::string(), usage.sessions, usage.gpu_s,
                        usage.session_s, usage.peak_memory_bytes, usage.bytes_in, usage.bytes_out);
  return text;
}

std::string usage_table(const UsageRows& rows, UsageBy by) {
  size_t tenant = 6, user = 4;
  for (const auto& [key, usage] : rows) {
    tenant = std::max(tenant, escaped(key.tenant).size());
    user = std::max(user, escaped(key.user).size());
  }
  auto names = [&](const std::string& one, const std::string& other) {
    std::string text = fmt::format("{:<{}}  ", one, tenant);
    return by == UsageBy::user ? text + fmt::format("{:<{}}  ", other, user) : text;
  };
  auto line = [&](const std::string& day, const std::string& who, const Usage& usage) {
    return fmt::format("{:<10}  {}{:>8}  {:>9}  {:>8}  {:>13}\n", day, who, usage.sessions, hours(usage.gpu_s),
                       hours(usage.session_s), gib(usage.peak_memory_bytes));
  };
  std::string text = fmt::format("{:<10}  {}{:>8}  {:>9}  {:>8}  {:>13}\n", "DAY", names("TENANT", "USER"), "SESSIONS",
                                 "GPU HOURS", "HOURS", "PEAK MEM. GiB");
  Usage sum;
  for (const auto& [key, usage] : rows) {
    const std::string who = key.user.empty() ? "-" : escaped(key.user);
    text += line(escaped(key.day), names(escaped(key.tenant), who), usage);
    add_to(sum, usage);
  }
  if (rows.size() > 1) text += line("total", names("", ""), sum);
  return text;
}

}  // namespace

std::string usage_text(const UsageBook& book, UsageFormat format, const std::string& tenant, const std::string& since,
                       UsageBy by) {
  return usage_text(book.days(tenant, since, by), format, by);
}

std::string usage_text(const UsageRows& rows, UsageFormat format, UsageBy by) {
  if (format == UsageFormat::json) return usage_json(rows, by);
  return format == UsageFormat::csv ? usage_csv(rows, by) : usage_table(rows, by);
}

}  // namespace gpuwire::server
