// Kernels that never end and sessions that only hold memory: when to warn, when to end them.
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

// Of one session.
class RunawayWatch {
 public:
  struct Verdict {
    enum class Kind : uint8_t { nothing, warn, end } kind = Kind::nothing;
    std::string text;  // one line for the client
    StopKind stop = StopKind::ended;
    std::optional<PageTime> next;  // when to ask again at the latest
  };
  // `stuck_since`, `idle_since`: zero: it is not. Each time is warned of once, none sooner after another warning than
  // its limit warns at, and the session is ended once.
  Verdict judge(const SessionLimits& limits, PageTime stuck_since, PageTime idle_since, PageTime now);
  // The last warning, while its cause persists.
  const std::string& warning() const { return warning_; }

 private:
  PageTime warned_{};     // of the work that began then
  PageTime warned_at_{};  // when that was
  bool ended_ = false;
  std::string warning_;
};

}  // namespace gpuwire::server
