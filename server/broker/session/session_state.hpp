// The phases of a session as one table: for each phase and change, the action and the next phase.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "server/broker/session/session_registry.hpp"

namespace gpuwire::server {

// queued: waits for GPUs, or for its client to return to its place. starting: a worker is being started. granted: the
// client has been told, and its connection has not arrived. replacing: as granted, and the worker has died. arrived:
// the client's connection has arrived, and the next worker is not ready. begins: a worker has the client. ending: the
// worker was told to end it. over: all its resources are released.
enum class SessionPhase : uint8_t {
  queued,
  starting,
  granted,
  replacing,
  arrived,
  begins,
  running,
  detached,
  ending,
  over
};
inline constexpr size_t kSessionPhases = 10;

enum class SessionChange : uint8_t {
  placed,          // the admission has given it devices
  refused,         // by the admission, for want of a worker, or by a part
  worker_ready,    // a worker is reserved for it
  worker_over,     // its worker has ended
  client_arrived,  // the client's connection
  client_left,     // before its connection arrived
  begun,           // its worker reports: the client has begun it
  detached,        // its worker reports: the connection is lost
  attached,        // its worker reports: another connection is there
  stopped,         // by an administrator, a part, the server's end
  overdue,         // its client has not begun it in time
};
inline constexpr size_t kSessionChanges = 11;

enum class SessionAction : uint8_t {
  nothing,      // the change cannot happen in this phase, or is known already
  start,        // asks for a worker
  grant,        // attaches the parts, and tells the client
  want_worker,  // asks for another worker
  keep_client,  // holds the client's connection until a worker is ready
  give,         // passes the client to the worker, with the reason if the session was stopped meanwhile
  withdraw,     // releases everything; there is no client to tell
  refuse,       // releases everything, and tells the client the reason
  end,          // releases everything; the worker has told the client, or has closed its connection by ending
  begin,        // notifies observers
  lose,         // marks it as without a connection
  regain,       // marks it as connected again
  remember,     // remembers the stop until the client can be told
  notify_stop,  // orders the worker to end it and to tell the client
};

struct SessionStep {
  SessionPhase next;
  SessionAction action;
  bool operator==(const SessionStep&) const = default;
};

SessionStep step_of(SessionPhase phase, SessionChange change);
// Returns the state that administrators see; `stopped`: its stop is remembered.
SessionState state_of(SessionPhase phase, bool stopped);
// Whether its client may resume it over another connection: its worker has the client, perhaps without having reported
// the begin yet.
bool resumable(SessionPhase phase);

// For tests and logs.
const char* name_of(SessionPhase phase);
const char* name_of(SessionChange change);

}  // namespace gpuwire::server
