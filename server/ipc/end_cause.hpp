// How a session ended.
#pragma once

#include <cstdint>

namespace gpuwire::server {

enum class EndCause : uint8_t {
  finished,      // the client said goodbye, or closed between two frames
  cut,           // the connection went away
  fault,         // the client sent what cannot be
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

}  // namespace gpuwire::server
