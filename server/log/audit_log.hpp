// Records the use of the server: one JSON line for each event, in a separate file.
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

// The budget of lines of one tenant: this many at once, and one more in each of these intervals, which is some 750 MB a
// day. A quarter of the budget is reserved for the ends of sessions, from which usage is computed.
inline constexpr unsigned kAuditLinesAtOnce = 4000;
inline constexpr std::chrono::milliseconds kAuditLineRefill{40};
inline constexpr unsigned kAuditLinesForEnds = kAuditLinesAtOnce / 4;
// The end of a session that lasted this long always gets a line, because `gpuwire usage` sums these lines. The number
// of places limits the number of such lines in this time.
inline constexpr double kAuditedSessionSeconds = 1;

// For one thread. Never give it a token or a key: every field is written.
class AuditLog {
 public:
  // Without a file: lines go to the server's log.
  AuditLog() = default;
  // Appends to `file`, made with mode 0600 when it is missing; a file that others may read or write is refused. The
  // error names file and cause.
  static tl::expected<AuditLog, std::string> open(std::filesystem::path file);

  // Opens the file again after it may have been moved away (SIGHUP). On an error the old file stays in use.
  tl::expected<void, std::string> reopen();
  // Hears every line.
  using Observer = std::function<void(std::string_view event, const LogFields& fields)>;
  void observe(Observer observer) { observer_ = std::move(observer); }
  // False: the tenant has used up its budget of lines, and the line is left out. A line "left_out" reports the number
  // of omitted lines before the tenant's next line, or after a quiet time. A line that cannot be written goes to the
  // server's log, with the cause, and no part of it stays in the file, so the next line is complete. A partial line of
  // an earlier process, or one that cannot be removed, is terminated by a line end.
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
  // The file ends within a line.
  bool torn_ = false;
  uint64_t lines_lost_ = 0;
  Observer observer_;
  Clock clock_ = &std::chrono::steady_clock::now;
  LineBudget budget_{{.at_once = kAuditLinesAtOnce, .refill = kAuditLineRefill}};
};

}  // namespace gpuwire::server
