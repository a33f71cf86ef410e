#include "server/broker/session/session_registry.hpp"

#include <utility>

#include <fmt/format.h>
#include <sys/random.h>

namespace gpuwire::server {

const char* name_of(SessionState state) {
  switch (state) {
    case SessionState::queued: return "queued";
    case SessionState::starting: return "starting";
    case SessionState::granted: return "granted";
    case SessionState::running: return "running";
    case SessionState::detached: return "detached";
    case SessionState::ending: return "ending";
  }
  return "?";
}

const char* name_of(SuspensionState state) {
  switch (state) {
    case SuspensionState::none: return "";
    case SuspensionState::suspending: return "suspending";
    case SuspensionState::suspended: return "suspended";
    case SuspensionState::resuming: return "resuming";
  }
  return "?";
}

const char* name_of(RefusalCause cause) {
  switch (cause) {
    case RefusalCause::client_gone: return "client_gone";
    case RefusalCause::busy: return "busy";
    case RefusalCause::never_fits: return "never_fits";
    case RefusalCause::no_device: return "no_device";
    case RefusalCause::unauthorised: return "unauthorised";
    case RefusalCause::shutting_down: return "shutting_down";
    case RefusalCause::internal: return "internal";
    case RefusalCause::waited_too_long: return "waited_too_long";
    case RefusalCause::stopped: return "stopped";
  }
  return "?";
}

std::string label_of(const SessionRecord& session) {
  return fmt::format("session {} from {}", uint64_t(session.number), session.peer);
}

const SessionRecord& SessionRegistry::add(SessionRecord record) {
  record.number = scheduler::SessionId(++last_number_);
  record.arrived = std::chrono::system_clock::now();
  [[maybe_unused]] ssize_t got =
      ::getrandom(record.wire_id.data(), record.wire_id.size(), 0);  // never short for so few bytes
  return sessions_[record.number] = std::move(record);
}

void SessionRegistry::restore(SessionRecord record) {
  numbers_used(uint64_t(record.number));
  scheduler::SessionId number = record.number;
  record.loss_notified = record.state == SessionState::detached;
  sessions_[number] = std::move(record);
}

void SessionRegistry::adopted(scheduler::SessionId session) {
  if (SessionRecord* record = at(session)) notify({.kind = SessionEvent::Kind::adopted, .session = *record});
}

SessionRecord* SessionRegistry::at(scheduler::SessionId session) {
  auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : &found->second;
}

const SessionRecord* SessionRegistry::find(scheduler::SessionId session) const {
  auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : &found->second;
}

void SessionRegistry::notify(const SessionEvent& event) {
  for (const Observer& observer : observers_) observer(event);
}

void SessionRegistry::queued(scheduler::SessionId session, size_t place, size_t waiting, std::string why) {
  SessionRecord* record = at(session);
  if (!record) return;
  bool first = record->place == 0;
  record->place = place;
  record->waiting = waiting;
  record->why = std::move(why);
  if (first) notify({.kind = SessionEvent::Kind::queued, .session = *record, .text = record->why});
}

void SessionRegistry::moved(scheduler::SessionId session, std::string peer, std::string security,
                            std::string credential) {
  SessionRecord* record = at(session);
  if (!record) return;
  record->peer = std::move(peer);
  record->security = std::move(security);
  record->credential = std::move(credential);
}

void SessionRegistry::admitted(scheduler::SessionId session, std::vector<scheduler::DeviceIndex> devices) {
  SessionRecord* record = at(session);
  if (!record) return;
  record->devices = std::move(devices);
  record->state = SessionState::starting;
  record->place = record->waiting = 0;
  notify({.kind = SessionEvent::Kind::admitted, .session = *record, .text = std::exchange(record->why, {})});
}

void SessionRegistry::granted(scheduler::SessionId session) {
  if (SessionRecord* record = at(session); record && record->state == SessionState::starting)
    record->state = SessionState::granted;
}

void SessionRegistry::waits_for_worker(scheduler::SessionId session) {
  if (SessionRecord* record = at(session)) record->waited_for_worker = true;
}

void SessionRegistry::has_worker(scheduler::SessionId session, pid_t worker) {
  if (SessionRecord* record = at(session)) record->worker_pid = worker;
}

void SessionRegistry::reclassify(const std::function<scheduler::ServiceClass(const SessionRecord&)>& class_of) {
  for (auto& [number, session] : sessions_) session.service_class = class_of(session);
}

void SessionRegistry::begun(scheduler::SessionId session, std::string client) {
  SessionRecord* record = at(session);
  if (!record) return;
  if (record->state != SessionState::ending) record->state = SessionState::running;
  record->begun = std::chrono::system_clock::now();
  notify({.kind = SessionEvent::Kind::begun, .session = *record, .text = std::move(client)});
}

void SessionRegistry::warned(scheduler::SessionId session, std::string of) {
  if (SessionRecord* record = at(session))
    notify({.kind = SessionEvent::Kind::warned, .session = *record, .text = std::move(of)});
}

void SessionRegistry::detached(scheduler::SessionId session, std::chrono::milliseconds grace, std::string why) {
  SessionRecord* record = at(session);
  if (!record || (record->state != SessionState::running && record->state != SessionState::detached)) return;
  const bool first = std::exchange(record->state, SessionState::detached) != SessionState::detached;
  record->detached_until = std::chrono::system_clock::now() + grace;
  if (first) record->loss_notified = record->losses.take(clock_());
  if (first && record->loss_notified)
    notify({.kind = SessionEvent::Kind::detached, .session = *record, .text = std::move(why)});
}

void SessionRegistry::attached(scheduler::SessionId session) {
  SessionRecord* record = at(session);
  if (!record || record->state != SessionState::detached) return;
  record->state = SessionState::running;
  if (std::exchange(record->loss_notified, false)) notify({.kind = SessionEvent::Kind::attached, .session = *record});
}

void SessionRegistry::resume_refused(scheduler::SessionId session, std::string why) {
  SessionRecord* record = at(session);
  if (record && record->refused_resumptions.take(clock_()))
    notify({.kind = SessionEvent::Kind::resume_refused, .session = *record, .text = std::move(why)});
}

void SessionRegistry::suspension(scheduler::SessionId session, SuspensionState state, uint64_t bytes,
                                 std::string requester) {
  SessionRecord* record = at(session);
  if (!record || std::exchange(record->suspension, state) == state) return;
  const bool was_away = record->suspended_since.time_since_epoch().count() != 0;
  if (state == SuspensionState::suspended) {
    record->suspended_bytes = bytes;
    record->suspended_since = std::chrono::system_clock::now();
    notify({.kind = SessionEvent::Kind::suspended, .session = *record, .text = std::move(requester)});
  } else if (state == SuspensionState::none && was_away) {
    notify({.kind = SessionEvent::Kind::resumed, .session = *record});
    record->suspended_bytes = 0;
    record->suspended_since = {};
  }
}

void SessionRegistry::restore_suspension(scheduler::SessionId session, SuspensionState state) {
  if (SessionRecord* record = at(session)) record->suspension = state;
}

void SessionRegistry::ending(scheduler::SessionId session) {
  if (SessionRecord* record = at(session)) record->state = SessionState::ending;
}

void SessionRegistry::ended(scheduler::SessionId session, uint32_t cause, std::string why) {
  SessionRecord* record = at(session);
  if (!record) return;
  notify({.kind = SessionEvent::Kind::ended, .session = *record, .text = std::move(why), .end_cause = cause});
  sessions_.erase(session);
}

void SessionRegistry::refused(scheduler::SessionId session, RefusalCause cause, std::string why) {
  SessionRecord* record = at(session);
  if (!record) return;
  notify({.kind = SessionEvent::Kind::refused, .session = *record, .text = std::move(why), .refusal = cause});
  sessions_.erase(session);
}

}  // namespace gpuwire::server
