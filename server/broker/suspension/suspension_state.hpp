// The phases of a session's suspension as one table, beside that of its life (session_state.hpp): for each phase and
// change, the action and the next phase.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "server/broker/session/session_registry.hpp"

namespace gpuwire::server {

// running: its worker may call the driver. quiescing: the worker was asked to rest. moving_out: the worker rests, and
// its device memory moves to the host. recalled: the same, and its client has made a call meanwhile. suspended: its
// device memory is with the host. awaiting_memory: it returns as soon as there is room for its memory. moving_in: its
// memory moves back to the device. lost: the driver has lost its memory; it was told to end.
enum class SuspensionPhase : uint8_t {
  running,
  quiescing,
  moving_out,
  recalled,
  suspended,
  awaiting_memory,
  moving_in,
  lost
};
inline constexpr size_t kSuspensionPhases = 8;

enum class SuspensionChange : uint8_t {
  suspend,     // an administrator suspends it
  quiet,       // its worker rests
  not_quiet,   // its worker does not rest, with the reason
  unanswered,  // its worker has not answered in time
  wanted,      // its client has made a call, or an administrator resumes it
  room,        // the ledger has taken its memory again
  moved,       // the ordered move is done
  refused,     // the move to the host was refused, and changed nothing
  no_room,     // the device has too little free memory for the move back
  failed,      // the driver has lost its memory
};
inline constexpr size_t kSuspensionChanges = 10;

enum class SuspensionAction : uint8_t {
  nothing,    // the change cannot happen in this phase, or is known already
  ask,        // asks its worker to rest
  refuse,     // answers the administrator with the reason
  order_out,  // orders the move to the host
  stay,       // lets the worker go on, and answers with the reason
  go_on,      // lets the worker go on
  release,    // releases its memory in the ledger
  await,      // waits for room, and tries at once
  order_in,   // orders the move back
  try_later,  // releases its memory in the ledger again, and waits for room
  finish,     // lets the worker go on: it is back
  end,        // ends the session with the reason
};

struct SuspensionStep {
  SuspensionPhase next;
  SuspensionAction action;
  bool operator==(const SuspensionStep&) const = default;
};

SuspensionStep step_of(SuspensionPhase phase, SuspensionChange change);
// Returns the state that administrators see.
SuspensionState state_of(SuspensionPhase phase);

// For tests and logs.
const char* name_of(SuspensionPhase phase);
const char* name_of(SuspensionChange change);

}  // namespace gpuwire::server
