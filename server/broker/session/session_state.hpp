// The life of a session as one table: in which phase it is, what may happen to it there, what is done about it, and
// where that leads.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "server/broker/session/session_registry.hpp"

namespace gpuwire::server {

// queued: waits for GPUs, or for its client to come back to its place. starting: a worker is on its way. granted: the
// client knows, and its connection is on its way. replacing: the same, and the worker has died. arrived: the client is
// here, and the next worker is not yet. begins: a worker has the client. ending: the worker was told to end it. over:
// everything is given back.
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
  placed,          // it has its devices
  refused,         // it cannot be had: by the admission, for want of a worker, by a part
  worker_ready,    // one is reserved for it
  worker_over,     // its worker has ended
  client_arrived,  // the client's connection
  client_left,     // before its connection arrived
  begun,           // its worker: the client has begun it
  detached,        // its worker: it has lost its connection
  attached,        // its worker: it has another one
  stopped,         // by an administrator, a part, the server's end
  overdue,         // its client has not begun it in time
};
inline constexpr size_t kSessionChanges = 11;

enum class SessionAction : uint8_t {
  nothing,      // it cannot happen in this phase, or says what is known
  start,        // wants a worker
  grant,        // the parts attach, and the client is told
  want_worker,  // another one
  keep_client,  // until there is a worker
  give,         // the client goes to the worker; if it was stopped meanwhile, with the reason
  withdraw,     // gives everything back; nobody is there to be told
  refuse,       // gives everything back; the client is told the reason
  end,          // gives everything back; the worker has told the client, or its connection has closed with the worker
  begin,        // who looks on is told
  lose,         // it has no connection
  regain,       // it has one again
  remember,     // to stop it as soon as its client can be told
  notify_stop,  // the worker ends it and tells the client
};

struct SessionStep {
  SessionPhase next;
  SessionAction action;
  bool operator==(const SessionStep&) const = default;
};

SessionStep step_of(SessionPhase phase, SessionChange change);
// What administrators are shown; `stopped`: its stop is remembered.
SessionState state_of(SessionPhase phase, bool stopped);
// Whether its client may carry it on over another connection: its worker has it, perhaps without having said yet that
// it has begun.
bool resumable(SessionPhase phase);

// For tests and logs.
const char* name_of(SessionPhase phase);
const char* name_of(SessionChange change);

}  // namespace gpuwire::server
