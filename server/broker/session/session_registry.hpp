// SessionRegistry has a record of each session, and notifies observers of their events.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "scheduler/types.hpp"
#include "server/broker/session/event_budget.hpp"

namespace gpuwire::server {

// queued: waits for GPUs; starting: has its GPUs, and its worker is being started; granted: its client has been told,
// and has not begun it; detached: runs without a connection, until it has another one or its grace is over; ending: was
// told to stop.
enum class SessionState : uint8_t { queued, starting, granted, running, detached, ending };
const char* name_of(SessionState state);

// The place of a running or detached session's device memory: with the host (suspended), or on its way there or back.
enum class SuspensionState : uint8_t { none, suspending, suspended, resuming };
// Returns the stable name; empty for `none`.
const char* name_of(SuspensionState state);

// Why a session did not begin. client_gone: the client left before it was served; never_fits: the request can never be
// met; no_device: the server has no device that works; waited_too_long: longer than its tenant's programs may; stopped:
// by an administrator, or because its client's credential was revoked.
enum class RefusalCause : uint8_t {
  client_gone,
  busy,
  never_fits,
  no_device,
  unauthorised,
  shutting_down,
  internal,
  waited_too_long,
  stopped
};
// Returns the stable name for the audit and metrics.
const char* name_of(RefusalCause cause);

struct SessionRecord {
  scheduler::SessionId number{};
  // Random; the client's name for the session.
  std::array<uint8_t, 16> wire_id{};
  std::string tenant;
  // The user of the tenant; empty: no particular one.
  std::string user;
  scheduler::TenantId tenant_id{};
  scheduler::ServiceClass service_class = scheduler::ServiceClass::batch;
  // Empty while it waits; of a management session: those that it sees.
  std::vector<scheduler::DeviceIndex> devices;
  // The client's request for each device.
  uint64_t memory_bytes = 0;
  // "127.0.0.1:4711", "unix, user anna".
  std::string peer;
  // "tls certificate", "tls token", "token", "unix"; without an identity "tls", "plain".
  std::string security;
  // The certificate's serial, or the token's id; or empty.
  std::string credential;
  std::string program, host;
  uint32_t client_pid = 0;
  // A part of the name that its GPUs must have (wire::is_of_type); empty: any.
  std::string gpu_type;
  // 0: none yet.
  pid_t worker_pid = 0;
  // Asks NVML, takes no GPU.
  bool management = false;
  // No worker was ready when it had its GPUs.
  bool waited_for_worker = false;
  SessionState state = SessionState::queued;
  // In the queue; place counts from 1, 0: not in it.
  size_t place = 0, waiting = 0;
  // The reason of its wait.
  std::string why;
  std::chrono::system_clock::time_point arrived, begun;
  // While it is detached.
  std::chrono::system_clock::time_point detached_until;
  SuspensionState suspension = SuspensionState::none;
  // The device memory that is with the host; 0: none.
  uint64_t suspended_bytes = 0;
  // With suspended_bytes or suspension.
  std::chrono::system_clock::time_point suspended_since;
  // For the worker's reports about connections.
  EventBudget losses, refused_resumptions;
  // The loss that detached it was notified.
  bool loss_notified = false;
};

// "session 17 from 10.0.0.7:4711", for logs.
std::string label_of(const SessionRecord& session);

struct SessionEvent {
  enum class Kind : uint8_t {
    queued,
    admitted,
    begun,
    warned,
    detached,
    attached,
    resume_refused,
    suspended,
    resumed,
    adopted,
    ended,
    refused
  };
  Kind kind;
  // Valid during the call.
  const SessionRecord& session;
  // admitted: the last reason of its wait, if it waited; begun: the client's description of itself; warned: the
  // warning; suspended: for whom; detached, resume_refused, ended, refused: the reason
  std::string text;
  // Refused.
  RefusalCause refusal = RefusalCause::internal;
  // ended: the worker's EndCause; kDied: its process ended without a message and without an order
  uint32_t end_cause = 0;
  static constexpr uint32_t kDied = UINT32_MAX;
};

// The broker's thread only. Records live from add() to ended() or refused().
class SessionRegistry {
 public:
  // Called at each event, in the order of observe(); observers stay for the registry's life. They must not change the
  // registry. A worker can cause detached, attached and resume_refused at will; EventBudget bounds how often observers
  // get them. The records of find() are always up to date.
  using Observer = std::function<void(const SessionEvent&)>;
  using Clock = std::function<std::chrono::steady_clock::time_point()>;
  explicit SessionRegistry(Clock clock = &std::chrono::steady_clock::now) : clock_(std::move(clock)) {}
  void observe(Observer observer) { observers_.push_back(std::move(observer)); }

  // Adds a record, with a new number and wire_id. Causes no event: the next change does.
  const SessionRecord& add(SessionRecord record);
  // Adds a record of an earlier broker, with its number. Causes no event until adopted().
  void restore(SessionRecord record);
  void adopted(scheduler::SessionId session);
  // Numbers up to `last` are used.
  void numbers_used(uint64_t last) { last_number_ = std::max(last_number_, last); }
  uint64_t last_number() const { return last_number_; }
  // The first call causes the event; later ones update the place.
  void queued(scheduler::SessionId session, size_t place, size_t waiting, std::string why);
  // The session's client has another connection.
  void moved(scheduler::SessionId session, std::string peer, std::string security, std::string credential);
  void admitted(scheduler::SessionId session, std::vector<scheduler::DeviceIndex> devices);
  void granted(scheduler::SessionId session);
  void waits_for_worker(scheduler::SessionId session);
  void has_worker(scheduler::SessionId session, pid_t worker);
  void begun(scheduler::SessionId session, std::string client);
  // `class_of`: returns a session's present class.
  void reclassify(const std::function<scheduler::ServiceClass(const SessionRecord&)>& class_of);
  void warned(scheduler::SessionId session, std::string of);
  // The first call causes the event; later ones move the end of the grace.
  void detached(scheduler::SessionId session, std::chrono::milliseconds grace, std::string why);
  void attached(scheduler::SessionId session);
  void resume_refused(scheduler::SessionId session, std::string why);
  // The session's suspension goes on to this state; `bytes` and `requester` (for the event) with `suspended`. The
  // events are those of `suspended`, and of `none` after it.
  void suspension(scheduler::SessionId session, SuspensionState state, uint64_t bytes = 0, std::string requester = {});
  // The same for a session of an earlier broker. Causes no event.
  void restore_suspension(scheduler::SessionId session, SuspensionState state);
  void ending(scheduler::SessionId session);
  void ended(scheduler::SessionId session, uint32_t cause, std::string why);
  void refused(scheduler::SessionId session, RefusalCause cause, std::string why);

  // Returns null if there is no such session (any more). Valid until the session ends.
  const SessionRecord* find(scheduler::SessionId session) const;
  const std::map<scheduler::SessionId, SessionRecord>& all() const { return sessions_; }

 private:
  SessionRecord* at(scheduler::SessionId session);
  void notify(const SessionEvent& event);

  const Clock clock_;
  std::map<scheduler::SessionId, SessionRecord> sessions_;
  std::vector<Observer> observers_;
  uint64_t last_number_ = 0;
};

}  // namespace gpuwire::server
