// Ordinals of frames, which are never reused. protocol/api/session.toml describes those of the session's own calls and
// notices, the other files of protocol/api those of driver functions, from 1000 on.
#pragma once

#include <cstdint>

#include "wire/session_ordinals.hpp"  // generated

namespace gpuwire::wire {

inline constexpr uint32_t kFirstDriverOrdinal = 1000;
inline constexpr uint32_t kOrdinalMax = 4096;

// FrameKind::control; structures in schema/handshake.capnp.
enum class ControlOrdinal : uint32_t {
  hello = 1,
  welcome = 2,
  goodbye = 3,
  login = 4,
  login_answer = 5,
  acknowledge_now = 6,  // client: requests the acknowledgement of all executed bytes, however few; no message
  // Over a new connection of a session that has lost its connection; not part of the session's streams.
  resume_challenge = 7,  // server: ResumeChallenge
  resume = 8,            // client: Resume
  resumed = 9,           // server: Resumed; the streams continue behind it
  heartbeat = 10,        // both directions, in a session that is otherwise idle; no message
  // Before the first frame of either stream, on a Unix socket whose server offers shared memory (kPrefaceSharedMemory).
  // The client asks, and the server answers; neither frame has a message. `sequence` is the version of the memory's
  // layout; 0 in an answer means that the socket carries the session. Otherwise the memory's descriptor is passed with
  // the answer.
  shared_memory = 11,
};

}  // namespace gpuwire::wire
