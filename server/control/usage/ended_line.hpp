// The `ended` lines of the audit log: a session's use, from its beginning to its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpuwire::server {

inline constexpr size_t kUsageLineBytesMax = 16 << 10;
inline constexpr size_t kEndedGpusMax = 64;

struct EndedLine {
  std::string time;    // "2026-11-23T17:00:00.000Z"; has at least its first ten characters
  std::string tenant;  // not empty
  std::string user;
  double session_s = 0, gpu_s = 0;
  uint64_t peak_memory_bytes = 0, bytes_in = 0, bytes_out = 0;
  std::vector<unsigned> gpus;  // kEndedGpusMax at most
};
// Returns the line's values; missing and negative numbers are 0. Nothing: the line is no `ended` line of a session that
// may use GPUs, or is malformed.
std::optional<EndedLine> read_ended_line(std::string_view line);

}  // namespace gpuwire::server
