#include "server/control/usage/ended_line.hpp"

#include <algorithm>

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
                  .session_s = number_of(json, "seconds"),
                  .gpu_s = number_of(json, "gpu_seconds"),
                  .peak_memory_bytes = uint64_t(number_of(json, "peak_memory_bytes")),
                  .bytes_in = uint64_t(number_of(json, "bytes_in")),
                  .bytes_out = uint64_t(number_of(json, "bytes_out")),
                  .gpus = gpus_of(json)};
  if (ended.time.size() < kDayBytes || ended.tenant.empty()) return std::nullopt;
  return ended;
}

}  // namespace gpuwire::server
