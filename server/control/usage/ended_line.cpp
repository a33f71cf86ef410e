#include "server/control/usage/ended_line.hpp"

#include <algorithm>
#include <cstdio>
#include <ctime>

#include "protocol/units/json.hpp"

namespace gpuwire::server {
namespace {

using AuditJson = nlohmann::json;

std::string text_of(const AuditJson& line, const char* name) {
  auto found = line.find(name);
  return found != line.end() && found->is_string() ? found->get<std::string>() : std::string();
}

double number_of(const AuditJson& line, const char* name) {
  auto found = line.find(name);
  return found != line.end() && found->is_number() ? std::max(0.0, found->get<double>()) : 0.0;
}

uint64_t session_of(const AuditJson& line) {
  auto found = line.find("session");
  return found != line.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
}

std::vector<unsigned> gpus_of(const AuditJson& line) {
  std::vector<unsigned> gpus;
  auto found = line.find("gpus");
  if (found == line.end() || !found->is_array()) return gpus;
  for (const AuditJson& one : *found)
    if (one.is_number_unsigned() && gpus.size() < kEndedGpusMax) gpus.push_back(one.get<unsigned>());
  return gpus;
}

}  // namespace

std::optional<EndedLine> read_ended_line(std::string_view line) {
  constexpr size_t kDayBytes = 10;  // of "2026-11-23T17:00:00.000Z"
  if (line.size() > kUsageLineBytesMax || line.find("\"ended\"") == std::string_view::npos) return std::nullopt;
  const auto json = parse_json(line);
  if (!json.is_object() || json.value("management", AuditJson(false)) == true || text_of(json, "event") != "ended")
    return {};
  EndedLine ended{.time = text_of(json, "time"),
                  .tenant = text_of(json, "tenant"),
                  .user = text_of(json, "user"),
                  .session = session_of(json),
                  .program = text_of(json, "program"),
                  .host = text_of(json, "host"),
                  .cause = text_of(json, "cause"),
                  .session_s = number_of(json, "seconds"),
                  .gpu_s = number_of(json, "gpu_seconds"),
                  .peak_memory_bytes = uint64_t(number_of(json, "peak_memory_bytes")),
                  .bytes_in = uint64_t(number_of(json, "bytes_in")),
                  .bytes_out = uint64_t(number_of(json, "bytes_out")),
                  .gpus = gpus_of(json)};
  if (ended.time.size() < kDayBytes || ended.tenant.empty()) return std::nullopt;
  return ended;
}

std::optional<WaitLine> read_wait_line(std::string_view line) {
  if (line.size() > kUsageLineBytesMax || line.find("\"waited_for\"") == std::string_view::npos) return std::nullopt;
  const auto json = parse_json(line);
  if (!json.is_object() || text_of(json, "event") != "admitted") return std::nullopt;
  WaitLine wait{session_of(json), number_of(json, "waited_seconds"), text_of(json, "waited_for")};
  if (wait.session == 0 || wait.waited_for.empty()) return std::nullopt;
  return wait;
}

std::optional<double> unix_time_of(const std::string& text) {
  std::tm time{};
  int milliseconds = 0;
  const int fields = std::sscanf(text.c_str(), "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ", &time.tm_year, &time.tm_mon,
                                 &time.tm_mday, &time.tm_hour, &time.tm_min, &time.tm_sec, &milliseconds);
  if (fields < 6) return std::nullopt;
  time.tm_year -= 1900;
  time.tm_mon -= 1;
  return double(::timegm(&time)) + milliseconds / 1000.0;
}

}  // namespace gpuwire::server
