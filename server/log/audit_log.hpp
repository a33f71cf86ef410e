// The use of the server and its results: one JSON line for each event, in a separate file.
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include <tl/expected.hpp>

#include "server/base/owned_descriptor.hpp"
#include "server/log/line_budget.hpp"
#include "server/log/log.hpp"

namespace gpuwire::server {

// Lines of one tenant: this many at once, and one more in each of these spans, which is some 750 MB a day. A quarter of
// them is left to the lines of sessions' ends, by which time is accounted for.
inline constexpr unsigned kAuditLinesAtOnce = 4000;
inline constexpr std::chrono::milliseconds kAuditLineRefill{40};
inline constexpr unsigned kAuditLinesForEnds = kAuditLinesAtOnce / 4;
// The end of a session that lasted this long always has a line: `gpuwire usage` sums these lines, and there are no more
// of them than places in this time.
inline constexpr double kAuditedSessionSeconds = 1;

// For one thread. Never give it a token or a key: every field is written.
class AuditLog {
 public:
  // Without a file: lines go to the server's log.
  AuditLog() = default;
  // Appends to `file`, made with mode 0600 when it is missing; a file that others may read or write is refused. The
  // error names file and cause.
  static tl::expected<AuditLog, std::string> open(std::filesystem::path file);

  // The file may have been moved away (SIGHUP): goes on in a new one of its name. On an error the old one stays in use.
  tl::expected<void, std::string> reopen();
  // Hears every line.
  using Observer = std::function<void(std::string_view event, const LogFields& fields)>;
  void observe(Observer observer) { observer_ = std::move(observer); }
  // False: the line's tenant has had too many of late, and it is left out. How many were stands in a line "left_out"
  // before the tenant's next one, or when it has been quiet.
  // A line that cannot be written goes to the server's log, with the cause, and no part of it stays in the file: the
  // next one is whole. A part that an earlier process has left, or that cannot be taken back, ends with its line.
  bool write(std::string_view event, const LogFields& fields);
  using Clock = std::function<std::chrono::steady_clock::time_point()>;
  void set_clock(Clock clock) { clock_ = std::move(clock); }

  const std::filesystem::path& file() const { return path_; }
  uint64_t lines_lost() const { return lines_lost_; }

 private:
  void take_back(size_t bytes);
  void write_line(std::string_view event, const LogFields& fields);
  void log_left_out(const std::string& tenant, uint64_t lines);

  std::filesystem::path path_;
  OwnedDescriptor file_;
  bool torn_ = false;  // the file ends within a line
  uint64_t lines_lost_ = 0;
  Observer observer_;
  Clock clock_ = &std::chrono::steady_clock::now;
  LineBudget budget_{{.at_once = kAuditLinesAtOnce, .refill = kAuditLineRefill}};
};

}  // namespace gpuwire::server
