#include "server/broker/session/broker_session.hpp"

#include <algorithm>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>

#include "server/broker/limits.hpp"

namespace gpuwire::server {

BrokerSession::BrokerSession(scheduler::SessionId number, const SessionDeps& around, unsigned gpus,
                             SessionAnswer answer)
    : number_(number), around_(around), gpus_(gpus), answer_(std::move(answer)), overdue_timer_(around.io) {}

// --- from phase to phase -------------------------------------------------------------------------------------------

void BrokerSession::happen(SessionChange change, Details details) {
  SessionStep step = step_of(phase_, change);
  phase_ = step.next;
  act(step.action, details);
}

// Each call below may cause another change before it returns, and so comes last.
void BrokerSession::act(SessionAction action, Details& details) {
  switch (action) {
    case SessionAction::nothing:
    case SessionAction::keep_client: return;
    case SessionAction::start: overdue_timer_.cancel(); return want_worker();
    case SessionAction::want_worker: return want_worker();
    case SessionAction::grant: return grant();
    case SessionAction::give: return give();
    case SessionAction::withdraw: return withdraw(details);
    case SessionAction::refuse: return refuse(details);
    case SessionAction::end: return end(details);
    case SessionAction::begin: {
      overdue_timer_.cancel();
      around_.registry.begun(number_, details.text);
      const SessionRecord& session = record();
      for (size_t i = 0; i < attached_; ++i) around_.parts[i]->begun(session);
      return note();
    }
    case SessionAction::lose: around_.registry.detached(number_, details.grace, details.text); return note();
    case SessionAction::regain: around_.registry.attached(number_); return note();
    case SessionAction::remember:
    case SessionAction::notify_stop:
      if (stop_.why.empty()) stop_ = {details.text, details.stop};
      around_.registry.ending(number_);
      note();
      if (action == SessionAction::notify_stop) pool().stop(number_, stop_);
      return;
  }
}

// --- its place -----------------------------------------------------------------------------------------------------

void BrokerSession::queued(const AdmissionQueued& place) {
  if (phase_ != SessionPhase::queued) return;
  around_.registry.queued(number_, place.place, place.waiting, place.why);
  // The session's number and round give its place.
  if (std::exchange(round_, place.round) != place.round || entry_.empty()) keep_place();
  SessionAnswer told = answer_;  // a copy: the call may end the session
  if (told) told(number_, place);
}

void BrokerSession::worker_starting(size_t place, size_t waiting) {
  if (phase_ != SessionPhase::starting) return;  // the client has its grant, and waits for a second worker
  SessionAnswer told = answer_;                  // as above
  if (told) told(number_, AdmissionQueued{place, waiting, "the GPU is free; its driver is still starting", round_});
}

// The place outlives this broker: the client will ask for it with the session's identity.
void BrokerSession::keep_place() {
  if (!around_.keeping) return;
  entry_ = kept_place_name(number_);
  around_.keeping->put({.session = false, .awaited = true, .name = entry_, .text = encode(kept()), .descriptors = {}});
}

void BrokerSession::adopt_waiting(uint64_t round, uint32_t return_ms) {
  round_ = round;
  entry_ = kept_place_name(number_);
  around_.registry.adopted(number_);
  overdue_after(return_ms, "its client has not come back to its place in the queue");
  around_.admission.ask_again(number_, gpus_, round_);
}

bool BrokerSession::client_is_back(const LoginRequest& request, SessionAnswer answer) {
  if (phase_ != SessionPhase::queued || answer_) return false;
  overdue_timer_.cancel();
  answer_ = std::move(answer);
  around_.registry.moved(number_, request.peer, request.security, request.credential);
  keep_place();
  const SessionRecord& session = record();
  SessionAnswer told = answer_;
  told(number_, AdmissionQueued{session.place, session.waiting, session.why, round_});
  around_.admission.client_is_back(number_);
  return true;
}

void BrokerSession::placed(std::vector<scheduler::DeviceIndex> devices) {
  if (step_of(phase_, SessionChange::placed).action != SessionAction::start) return;
  around_.registry.admitted(number_, std::move(devices));
  happen(SessionChange::placed);
}

void BrokerSession::refused(RefusalCause cause, std::string why) {
  happen(SessionChange::refused, {.refusal = cause, .text = std::move(why)});
}

// --- a worker ------------------------------------------------------------------------------------------------------

void BrokerSession::want_worker() {
  const SessionRecord& session = record();
  wanted_worker_ = true;
  pool().want(number_, label_of(session), session.tenant);
  if (phase_ == SessionPhase::starting && !record().management) around_.registry.waits_for_worker(number_);
}

void BrokerSession::worker_reserved(pid_t worker) {
  if (over()) return;
  around_.registry.has_worker(number_, worker);
  if (phase_ == SessionPhase::starting) {
    prepare_order();
    if (std::string error; !attach(error))
      return happen(SessionChange::refused, {.refusal = RefusalCause::internal, .text = std::move(error)});
  }
  happen(SessionChange::worker_ready);
}

void BrokerSession::prepare_order() {
  const SessionRecord& session = record();
  spec_.number = uint64_t(number_);
  spec_.peer = session.peer;
  spec_.tenant = session.tenant;
  spec_.identified = session.security != "plain" && session.security != "tls";
  for (scheduler::DeviceIndex device : session.devices) spec_.devices.push_back({.index = device});
  if (!session.management) allow_graces(session);
}

void BrokerSession::grant() {
  around_.registry.granted(number_);
  limit_begin();
  answer(AdmissionGranted{});  // the client may arrive or leave before this returns
}

// Each step until the begin has a limit of its own; this one bounds them together, also for a worker that ignores its
// own. The session's page counts idle time from its first frame on; until then this timer does.
void BrokerSession::limit_begin() {
  const Tenant* of = tenant(record());
  const uint64_t idle_ms = of ? of->settings.idle_time_max_ms : 0;
  if (idle_ms != 0 && idle_ms < around_.begin_ms)
    return overdue_after(uint32_t(idle_ms), "the session has been idle: its client has not begun it");
  overdue_after(around_.begin_ms, "its client has not begun it");
}

const Tenant* BrokerSession::tenant(const SessionRecord& session) const {
  return around_.tenants ? around_.tenants->find(session.tenant_id) : nullptr;
}

void BrokerSession::worker_over(uint32_t cause, const std::string& why) {
  Details details{.end_cause = cause, .text = why};
  const bool again = step_of(phase_, SessionChange::worker_over).action == SessionAction::want_worker;
  happen(again && workers_lost_++ >= kWorkersLostMax ? SessionChange::refused : SessionChange::worker_over,
         std::move(details));
}

void BrokerSession::allow_graces(const SessionRecord& session) {
  const Tenant* of = tenant(session);
  auto most = of && of->settings.resume_grace_max_ms ? std::chrono::milliseconds(*of->settings.resume_grace_max_ms)
                                                     : around_.graces.resume;
  spec_.resume_grace_ms = uint32_t(std::min(around_.graces.resume, most).count());
  spec_.hang_up_grace_ms = uint32_t(around_.graces.hang_up.count());
  spec_.lanes_max = around_.lanes_max.value_or(session.security.starts_with("tls") ? kLanesUsualTls : kLanesUsual);
}

bool BrokerSession::attach(std::string& error) {
  const SessionRecord& session = record();
  for (SessionAttachments* part : around_.parts) {
    auto attached = session.management ? part->attach_management(session, spec_, descriptors_)
                                       : part->attach(session, spec_, descriptors_);
    if (!attached) {
      error = attached.error();
      return false;
    }
    ++attached_;
  }
  return true;
}

void BrokerSession::detach() {
  const SessionRecord& session = record();
  while (attached_ > 0) around_.parts[--attached_]->ended(session);
}

// --- what outlives the broker --------------------------------------------------------------------------------------

KeptSession BrokerSession::kept() const {
  const SessionRecord& session = record();
  KeptSession kept{.build = kept_build(),
                   .record = session,
                   .gpus = gpus_,
                   .queue_round = round_,
                   .device_uuids = {},
                   .stop = stop_,
                   .resume_grace_ms = spec_.resume_grace_ms};
  for (scheduler::DeviceIndex device : session.devices)
    kept.device_uuids.push_back(device < around_.devices.size() ? around_.devices[device].uuid : std::string());
  for (size_t i = 0; i < attached_; ++i) around_.parts[i]->note(session, kept);
  return kept;
}

void BrokerSession::being_served(WorkerProcess& worker, const ipc::Serve& client) {
  if (over()) return;
  around_.registry.has_worker(number_, worker.pid());
  if (!around_.keeping) return;
  KeptEntry entry{.session = true, .name = kept_name(number_), .text = encode(kept()), .descriptors = {}};
  entry.descriptors.resize(kKeptDescriptors);
  bool whole = true;
  auto keep = [&](KeptDescriptor which, int descriptor) {
    if (descriptor < 0) return;  // the worker has none
    OwnedDescriptor& copy = entry.descriptors[size_t(which)];
    copy.reset(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
    whole = whole && copy;
  };
  keep(KeptDescriptor::worker, worker.descriptor());
  keep(KeptDescriptor::process, worker.process());
  keep(KeptDescriptor::session_page, client.descriptors.session_page.get());
  keep(KeptDescriptor::doorbell, client.descriptors.doorbell.get());
  if (!whole) return;
  const std::string place = std::exchange(entry_, entry.name);
  around_.keeping->put(std::move(entry));
  if (!place.empty() && place != entry_) around_.keeping->remove(place);
}

void BrokerSession::note() {
  if (!entry_.empty() && !over()) around_.keeping->note(entry_, encode(kept()));
}

void BrokerSession::forget_entry() {
  if (std::string name = std::exchange(entry_, {}); !name.empty() && around_.keeping) around_.keeping->remove(name);
}

void BrokerSession::adopt(const KeptSession& kept, KeptEntry entry, const std::string& unfit) {
  const SessionRecord& session = record();
  phase_ = session.state == SessionState::detached  ? SessionPhase::detached
           : session.state == SessionState::running ? SessionPhase::running
                                                    : SessionPhase::begins;
  entry_ = entry.name;
  spec_.number = uint64_t(number_);
  spec_.resume_grace_ms = kept.resume_grace_ms;
  auto copy = [&](KeptDescriptor which) {
    return OwnedDescriptor(::fcntl(entry.descriptors[size_t(which)].get(), F_DUPFD_CLOEXEC, 0));
  };
  pool().adopt(number_, label_of(session), session.tenant, copy(KeptDescriptor::worker), copy(KeptDescriptor::process),
               session.worker_pid);
  std::string why = unfit;
  for (SessionAttachments* part : around_.parts) {
    if (!why.empty()) break;
    if (auto adopted = part->adopt(session, kept, entry)) ++attached_;
    else why = adopted.error();
  }
  if (why.empty()) around_.admission.adopted(number_);
  around_.registry.adopted(number_);
  pool().send(number_, ipc::Adopted{});
  if (phase_ == SessionPhase::begins) limit_begin();
  if (!why.empty()) stop(why);
  else if (!kept.stop.why.empty()) stop(kept.stop);
}

// --- a client ------------------------------------------------------------------------------------------------------

void BrokerSession::answer(const AdmissionAnswer& what) {
  if (SessionAnswer told = std::exchange(answer_, {})) told(number_, what);
}

void BrokerSession::overdue_after(uint32_t ms, const char* what) {
  overdue_timer_.expires_after(std::chrono::milliseconds(ms));
  overdue_timer_.async_wait(lifetime_.guard([this, ms, what](boost::system::error_code error) {
    if (!error) happen(SessionChange::overdue, {.text = fmt::format("{} within {} ms", what, ms)});
  }));
}

void BrokerSession::client_arrived(OwnedDescriptor client, std::string tls_key) {
  if (phase_ != SessionPhase::granted && phase_ != SessionPhase::replacing) return;
  client_.emplace(Client{std::move(client), std::move(tls_key)});
  happen(SessionChange::client_arrived);
}

// A session that was stopped meanwhile goes to its worker all the same: only the worker can tell the client the reason.
void BrokerSession::give() {
  spec_.tls_key = std::move(client_->tls_key);
  descriptors_.client = std::move(client_->socket);
  client_.reset();
  pool().give(number_, {record().wire_id, spec_, std::move(descriptors_)});
  if (!stop_.why.empty()) stop(stop_);
}

void BrokerSession::client_gone(const std::string& why) { happen(SessionChange::client_left, {.text = why}); }

// --- what its worker says ------------------------------------------------------------------------------------------

void BrokerSession::begun(const std::string& client) { happen(SessionChange::begun, {.text = client}); }

void BrokerSession::on_message(ipc::Message& message) {
  if (over() || record().management || on_connection_message(message)) return;
  const SessionRecord& session = record();
  for (SessionAttachments* part : around_.parts) {
    if (part->on_message(session, message)) return;
  }
}

bool BrokerSession::on_connection_message(const ipc::Message& message) {
  if (auto* detached = std::get_if<ipc::Detached>(&message)) {
    // The worker's figure is cut to the granted grace.
    std::chrono::milliseconds grace(std::min<int64_t>(detached->grace_ms, spec_.resume_grace_ms));
    happen(SessionChange::detached, {.text = detached->why, .grace = grace});
    return true;
  }
  if (std::holds_alternative<ipc::Attached>(message)) {
    happen(SessionChange::attached);
    return true;
  }
  if (auto* refused = std::get_if<ipc::ResumeRefused>(&message)) {
    around_.registry.resume_refused(number_, refused->why);
    return true;
  }
  return false;
}

// --- its end -------------------------------------------------------------------------------------------------------

void BrokerSession::stop(const StopOrder& order) {
  happen(SessionChange::stopped, {.refusal = RefusalCause::stopped, .text = order.why, .stop = order.kind});
}

void BrokerSession::withdraw(const Details& details) {
  answer_ = {};
  pool_release();
  give_back();
  around_.registry.refused(number_, RefusalCause::client_gone, details.text);
  around_.admission.over(number_);
}

void BrokerSession::refuse(Details& details) {
  pool_release();
  give_back();
  around_.registry.refused(number_, details.refusal, details.text);
  answer(AdmissionRefused{details.refusal, std::move(details.text)});
  around_.admission.over(number_);
}

void BrokerSession::end(Details& details) {
  pool_release();
  give_back();
  around_.registry.ended(number_, details.end_cause, std::move(details.text));
  around_.admission.over(number_);
}

void BrokerSession::pool_release() {
  if (wanted_worker_) pool().release(number_);
}

void BrokerSession::give_back() {
  detach();
  forget_entry();
  overdue_timer_.cancel();
  around_.over(number_);
}

}  // namespace gpuwire::server
