// Ordinals of frames. Never reused. Those of the session's own calls and notices are described in
// protocol/api/session.toml, and driver functions, from 1000 on, beside it.
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
  acknowledge_now = 6,  // client: acknowledge all executed bytes, however few; no message
  // Over a new connection of a session that has lost its own; not part of the session's streams.
  resume_challenge = 7,  // server: ResumeChallenge
  resume = 8,            // client: Resume
  resumed = 9,           // server: Resumed; behind it the streams go on
  heartbeat = 10,        // either way, in a session that is otherwise idle; no message
  // Before the first frame of either stream, on a Unix socket whose server offers it (kPrefaceSharedMemory): the client
  // asks, the server answers; no message. `sequence`: the version of the memory's layout; in an answer 0: there is no
  // shared memory, and the socket carries the session. Otherwise the memory's descriptor comes with the frame.
  shared_memory = 11,
};

}  // namespace gpuwire::wire
