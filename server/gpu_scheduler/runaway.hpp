// Decides when to warn of endless kernels and idle sessions, and when to end them.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "server/gate/page/session_page.hpp"
#include "server/ipc/end_cause.hpp"

namespace gpuwire::server {

// Zero: no limit.
struct SessionLimits {
  std::chrono::milliseconds kernel_time_max{};
  std::chrono::milliseconds idle_time_max{};
  bool operator==(const SessionLimits&) const = default;
};

// Watches one session.
class RunawayWatch {
 public:
  struct Verdict {
    enum class Kind : uint8_t { nothing, warn, end } kind = Kind::nothing;
    // One line for the client.
    std::string text;
    StopKind stop = StopKind::ended;
    // The latest time of the next check.
    std::optional<PageTime> next;
  };
  // `stuck_since`, `idle_since`: zero: the session is not stuck or idle. The function warns once of each time, leaves
  // at least the time of a warning between two warnings, and ends the session once.
  Verdict judge(const SessionLimits& limits, PageTime stuck_since, PageTime idle_since, PageTime now);
  // Returns the last warning, while its cause persists.
  const std::string& warning() const { return warning_; }

 private:
  // The beginning of the stuck or idle time that the client was warned of.
  PageTime warned_{};
  // The time of that warning.
  PageTime warned_at_{};
  bool ended_ = false;
  std::string warning_;
};

}  // namespace gpuwire::server
