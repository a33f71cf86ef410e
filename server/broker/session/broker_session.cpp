#include "server/broker/session/broker_session.hpp"

#include <algorithm>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>

#include "server/broker/limits.hpp"

namespace gpuwire::server {

BrokerSession::BrokerSession(scheduler::SessionId number, const SessionSurroundings& around) : number_(number), around_(around), begin_timer_(around.io) {}

// --- a worker -----------------------------------------------------------------------------------------------------------------------------------

void BrokerSession::start() { want_worker(); }

void BrokerSession::want_worker() {
  const SessionRecord& session = record();
  pool().want(number_, label_of(session), session.tenant);
}

void BrokerSession::worker_reserved(pid_t worker) {
  if (over()) return;
  has_worker_ = true;
  around_.registry.has_worker(number_, worker);
  if (stage_ == Stage::granted) {  // another one than the client was promised
    if (client_) give();
    return;
  }
  const SessionRecord& session = record();
  order_.number = uint64_t(number_);
  order_.peer = session.peer;
  order_.tenant = session.tenant;
  order_.identified = session.security != "plain" && session.security != "tls";
  for (scheduler::DeviceIndex device : session.devices) order_.devices.push_back({.index = device});
  if (!session.management) allow_graces(session);
  message_.kind = IpcMessageKind::session;
  message_.id = session.wire_id;
  std::string error;
  if (!attach(error)) return refuse(RefusalCause::internal, std::move(error));
  stage_ = Stage::granted;
  around_.registry.granted(number_);
  await_begin();
  around_.admission.prepared(number_);  // the last step: the client may be here, or gone, before this returns
}

// --- what outlives the broker -----------------------------------------------------------------------------------------------------------------------

KeptSession BrokerSession::kept() const {
  const SessionRecord& session = record();
  KeptSession kept{.build = kept_build(), .record = session, .device_uuids = {}, .stop_reason = stop_reason_, .resume_grace_ms = order_.resume_grace_ms};
  for (scheduler::DeviceIndex device : session.devices) kept.device_uuids.push_back(device < around_.devices.size() ? around_.devices[device].uuid : std::string());
  for (size_t i = 0; i < attached_; ++i) around_.parts[i]->note(session, kept);
  return kept;
}

void BrokerSession::being_served(WorkerProcess& worker, const IpcMessage& client) {
  if (over()) return;
  around_.registry.has_worker(number_, worker.pid());
  if (!around_.keeping) return;
  auto of_order = [&](SpecDescriptor which) {
    size_t place = size_t(which) - 1;
    return place < client.more.size() ? client.more[place].get() : -1;
  };
  KeptEntry entry{.session = true, .name = kept_name(number_), .text = encode(kept()), .descriptors = {}};
  entry.descriptors.resize(kKeptDescriptors);
  auto keep = [&](KeptDescriptor which, int descriptor) { entry.descriptors[size_t(which)] = descriptor < 0 ? nothing() : OwnedDescriptor(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0)); };
  keep(KeptDescriptor::worker, worker.descriptor());
  keep(KeptDescriptor::process, worker.process());
  keep(KeptDescriptor::session_page, of_order(SpecDescriptor::session_page));
  keep(KeptDescriptor::doorbell, of_order(SpecDescriptor::doorbell));
  kept_ = std::all_of(entry.descriptors.begin(), entry.descriptors.end(), [](const OwnedDescriptor& one) { return bool(one); });
  if (kept_) around_.keeping->put(std::move(entry));
}

void BrokerSession::note() {
  if (kept_ && !over()) around_.keeping->note(kept_name(number_), encode(kept()));
}

void BrokerSession::adopt(const KeptSession& kept, KeptEntry entry, const std::string& unfit) {
  const SessionRecord& session = record();
  const bool begun = session.state != SessionState::granted;
  stage_ = begun ? Stage::running : Stage::granted;
  has_worker_ = given_ = kept_ = true;
  order_.number = uint64_t(number_);
  order_.resume_grace_ms = kept.resume_grace_ms;
  auto copy = [&](KeptDescriptor which) { return OwnedDescriptor(::fcntl(entry.descriptors[size_t(which)].get(), F_DUPFD_CLOEXEC, 0)); };
  pool().adopt(number_, label_of(session), session.tenant, copy(KeptDescriptor::worker), copy(KeptDescriptor::process), session.worker_pid);
  std::string why = unfit;
  for (SessionAttachments* part : around_.parts) {
    if (!why.empty()) break;
    if (auto adopted = part->adopt(session, kept, entry)) ++attached_;
    else why = adopted.error();
  }
  if (why.empty()) around_.admission.adopted(number_);
  around_.registry.adopted(number_);
  IpcMessage word;
  word.kind = IpcMessageKind::adopted;
  pool().send(number_, word);
  if (!begun) await_begin();
  if (why.empty()) why = kept.stop_reason;
  if (!why.empty()) stop(why);
}

void BrokerSession::allow_graces(const SessionRecord& session) {
  const Tenant* tenant = around_.tenants ? around_.tenants->find(session.tenant_id) : nullptr;
  auto most = tenant && tenant->settings.resume_grace_max_ms ? std::chrono::milliseconds(*tenant->settings.resume_grace_max_ms) : around_.graces.resume;
  order_.resume_grace_ms = uint32_t(std::min(around_.graces.resume, most).count());
  order_.hang_up_grace_ms = uint32_t(around_.graces.hang_up.count());
}

void BrokerSession::no_worker(RefusalCause cause, const std::string& why) {
  if (over()) return;
  has_worker_ = given_ = false;
  if (stage_ == Stage::starting)
    refuse(cause, why);
  else  // the last worker that there was for it has died; its client sees the connection end, and may come again
    end(SessionEvent::kDied, why);
}

bool BrokerSession::attach(std::string& error) {
  const SessionRecord& session = record();
  for (SessionAttachments* part : around_.parts) {
    auto attached = session.management ? part->attach_management(session, order_, message_) : part->attach(session, order_, message_);
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

// --- a client -----------------------------------------------------------------------------------------------------------------------------------

// Each step until then has a limit of its own; this one holds for all of them, and for a worker that does not keep its own.
void BrokerSession::await_begin() {
  begin_timer_.expires_after(std::chrono::milliseconds(around_.begin_ms));
  begin_timer_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    if (error || stage_ != Stage::granted) return;
    std::string why = fmt::format("its client has not begun it within {} ms", around_.begin_ms);
    if (given_)
      stop(why);
    else
      client_gone(why);
  }));
}

void BrokerSession::client_arrived(OwnedDescriptor client, std::string tls_key) {
  if (stage_ != Stage::granted || given_ || client_) return;
  client_.emplace(Client{std::move(client), std::move(tls_key)});
  if (has_worker_) give();
}

// A session that was stopped meanwhile goes to its worker all the same, which alone can tell the client why.
void BrokerSession::give() {
  order_.tls_key = std::move(client_->tls_key);
  IpcMessage message = std::move(message_);
  message.text = encode(order_);
  message.socket = std::move(client_->socket);
  client_.reset();
  given_ = true;
  pool().give(number_, std::move(message));
  if (!stop_reason_.empty()) pool().stop(number_, stop_reason_);
}

void BrokerSession::client_gone(const std::string& why) {
  if (over() || given_) return;
  pool().release(number_);
  give_back();
  around_.admission.cancel(number_, why);
}

// --- its life -----------------------------------------------------------------------------------------------------------------------------------

void BrokerSession::begun(const std::string& client) {
  if (stage_ != Stage::granted || !given_) return;
  stage_ = Stage::running;
  begin_timer_.cancel();
  around_.registry.begun(number_, client);
  const SessionRecord& session = record();
  for (size_t i = 0; i < attached_; ++i) around_.parts[i]->begun(session);
  note();
}

void BrokerSession::heard(IpcMessage& message) {
  if (over() || record().management || heard_of_connection(message)) return;
  const SessionRecord& session = record();
  for (SessionAttachments* part : around_.parts) {
    if (part->heard(session, message)) return;
  }
}

bool BrokerSession::heard_of_connection(const IpcMessage& message) {
  // A worker's own figure: what it says in excess harms nobody, and is not shown.
  std::chrono::milliseconds grace(std::min<int64_t>(message.number, order_.resume_grace_ms));
  switch (message.kind) {
    case IpcMessageKind::detached:
      around_.registry.detached(number_, grace, message.text);
      note();
      return true;
    case IpcMessageKind::attached:
      around_.registry.attached(number_);
      note();
      return true;
    case IpcMessageKind::resume_refused: around_.registry.resume_refused(number_, message.text); return true;
    default: return false;
  }
}

void BrokerSession::stop(const std::string& reason) {
  if (over()) return;
  if (stage_ == Stage::starting) return refuse(RefusalCause::stopped, reason);
  if (stop_reason_.empty()) stop_reason_ = reason;
  around_.registry.ending(number_);
  note();
  if (given_) pool().stop(number_, reason);
}

void BrokerSession::worker_over(uint32_t cause, const std::string& why) {
  if (over()) return;
  has_worker_ = false;
  if (stage_ == Stage::granted && !given_ && workers_lost_++ < kWorkersLostMax) return want_worker();
  end(cause, why);
}

// --- its end ------------------------------------------------------------------------------------------------------------------------------------

void BrokerSession::refuse(RefusalCause cause, std::string why) {
  pool().release(number_);
  give_back();
  around_.admission.refuse(number_, cause, std::move(why));
}

void BrokerSession::end(uint32_t cause, const std::string& why) {
  give_back();
  around_.admission.ended(number_);
  around_.registry.ended(number_, cause, why);
}

void BrokerSession::give_back() {
  detach();
  if (std::exchange(kept_, false)) around_.keeping->remove(kept_name(number_));
  stage_ = Stage::over;
  begin_timer_.cancel();
  around_.over(number_);
}

}  // namespace gpuwire::server
