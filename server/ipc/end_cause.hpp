// How a session ended.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace gpuwire::server {

enum class EndCause : uint8_t {
  finished,      // the client sent Goodbye, or closed between two frames
  cut,           // the connection went away
  fault,         // the client sent invalid data
  stopped,       // stop() was called
  internal,      // the server's own failure
  resume_grace,  // the connection was lost, and the client did not come back in time
};

inline constexpr unsigned kEndCauses = 6;

constexpr const char* name_of(EndCause cause) {
  switch (cause) {
    case EndCause::finished: return "finished";
    case EndCause::cut: return "cut";
    case EndCause::fault: return "fault";
    case EndCause::stopped: return "stopped";
    case EndCause::internal: return "internal";
    case EndCause::resume_grace: return "resume_grace";
  }
  return "unknown";
}

// The reason why the broker ends a session, which determines the error of the program's calls.
enum class StopKind : uint8_t {
  ended,        // an administrator, a limit, the server's end
  kernel_time,  // a kernel exceeded its tenant's limit of time
  revoked,      // its credential was revoked
};
inline constexpr unsigned kStopKinds = 3;

struct StopOrder {
  // One line, for the user.
  std::string why;
  StopKind kind = StopKind::ended;

  StopOrder() = default;
  StopOrder(std::string reason, StopKind of = StopKind::ended) : why(std::move(reason)), kind(of) {}
  StopOrder(const char* reason, StopKind of = StopKind::ended) : StopOrder(std::string(reason), of) {}
};

}  // namespace gpuwire::server
