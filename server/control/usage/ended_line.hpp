// The lines of the audit log about a session's use, from its beginning to its end (`ended`), and its wait (`admitted`).
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
  // "2026-11-23T17:00:00.000Z"; has at least its first ten characters.
  std::string time;
  // Not empty.
  std::string tenant;
  std::string user;
  uint64_t session = 0;
  std::string program, host, cause;
  double session_s = 0, gpu_s = 0;
  uint64_t peak_memory_bytes = 0, bytes_in = 0, bytes_out = 0;
  // kEndedGpusMax at most.
  std::vector<unsigned> gpus;
};
// Returns the line's values; missing and negative numbers are 0. Nothing: the line is no `ended` line of a session that
// may use GPUs, or is malformed.
std::optional<EndedLine> read_ended_line(std::string_view line);

struct WaitLine {
  uint64_t session = 0;
  double waited_s = 0;
  // Not empty.
  std::string waited_for;
};
// Nothing: the line is no `admitted` line of a session that has waited, or is malformed.
std::optional<WaitLine> read_wait_line(std::string_view line);

// Returns the time in a line, "2026-11-23T17:00:00.000Z", in seconds since 1970.
std::optional<double> unix_time_of(const std::string& text);

}  // namespace gpuwire::server
