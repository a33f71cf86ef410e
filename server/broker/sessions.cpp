#include "server/broker/sessions.hpp"

#include <utility>

#include <fmt/format.h>

namespace gpuwire::server {

void Sessions::devices_known(std::span<const ServerDevice> devices, const TenantDirectory& tenants) {
  for (SessionAttachments* part : parts_) part->devices_known(devices);
  tenants_changed(tenants);
}

void Sessions::tenants_changed(const TenantDirectory& tenants) {
  for (SessionAttachments* part : parts_) part->tenants_changed(tenants);
}

bool Sessions::attach(const SessionRecord& session, Prepared& prepared, std::string& error) {
  for (SessionAttachments* part : parts_) {
    auto attached = session.management ? part->attach_management(session, prepared.order, prepared.handoff)
                                       : part->attach(session, prepared.order, prepared.handoff);
    if (!attached) {
      error = attached.error();
      return false;
    }
    ++prepared.attached;
  }
  return true;
}

void Sessions::detach(const SessionRecord& session) {
  auto gone = prepared_.extract(session.number);
  if (!gone) return;
  for (size_t i = gone.mapped().attached; i-- > 0;) parts_[i]->ended(session);
}

WorkerPool::Events Sessions::pool_events() {
  return {.ready = [](const Handoff&) {},
          .hopeless = [](const std::string&) {},
          .reserved = [this](scheduler::SessionId session, pid_t worker) { reserved(session, worker); },
          .refused = [this](scheduler::SessionId session, RefusalCause cause, const std::string& why) {
            if (prepared_.count(session))
              ended(session, SessionEvent::kDied, why);  // it had a worker, which died
            else
              admission_.refuse(session, cause, why);
          },
          .begun = [this](scheduler::SessionId session, const std::string& client) { begun(session, client); },
          .heard = [this](scheduler::SessionId session, Handoff& message) { heard(session, message); },
          .over = [this](scheduler::SessionId session, uint32_t cause, const std::string& why) { ended(session, cause, why); },
          .idle = [] {}};
}

void Sessions::prepare(scheduler::SessionId number) {
  if (const SessionRecord* session = book_.find(number)) pool_for_(*session).want(number, label_of(*session), session->tenant);
}

void Sessions::reserved(scheduler::SessionId number, pid_t worker) {
  const SessionRecord* session = book_.find(number);
  if (!session) return;
  book_.has_worker(number, worker);
  Prepared& prepared = prepared_[number];
  prepared.order.number = uint64_t(number);
  prepared.order.peer = session->peer;
  prepared.order.tenant = session->tenant;
  prepared.order.identified = session->security != "plain" && session->security != "tls";
  for (scheduler::DeviceIndex device : session->devices) prepared.order.devices.push_back({.index = device});
  prepared.handoff.kind = HandoffKind::session;
  prepared.handoff.id = session->wire_id;
  std::string error;
  if (attach(*session, prepared, error)) return admission_.prepared(number);
  detach(*session);
  pool_for_(*session).release(number);
  admission_.refuse(number, RefusalCause::internal, std::move(error));
}

void Sessions::serve(scheduler::SessionId number, OwnedDescriptor client, std::string tls_key) {
  const SessionRecord* session = book_.find(number);
  auto found = prepared_.find(number);
  if (!session || found == prepared_.end()) return;
  Prepared& prepared = found->second;
  prepared.order.tls_key = std::move(tls_key);
  Handoff handoff = std::move(prepared.handoff);
  handoff.text = encode(prepared.order);
  handoff.socket = std::move(client);
  pool_for_(*session).give(number, std::move(handoff));
}

void Sessions::cancel(scheduler::SessionId number, const std::string& why) {
  const SessionRecord* session = book_.find(number);
  if (!session) return;
  if (session->state != SessionState::queued) pool_for_(*session).release(number);
  detach(*session);
  admission_.cancel(number, why);
}

void Sessions::begun(scheduler::SessionId number, const std::string& client) {
  book_.begun(number, client);
  const SessionRecord* session = book_.find(number);
  auto found = prepared_.find(number);
  if (!session || found == prepared_.end()) return;
  for (size_t i = 0; i < found->second.attached; ++i) parts_[i]->begun(*session);
}

void Sessions::heard(scheduler::SessionId number, Handoff& message) {
  const SessionRecord* session = book_.find(number);
  if (!session || session->management) return;
  for (SessionAttachments* part : parts_) {
    if (part->heard(*session, message)) return;
  }
}

void Sessions::ended(scheduler::SessionId number, uint32_t cause, const std::string& why) {
  if (const SessionRecord* session = book_.find(number)) detach(*session);
  admission_.ended(number);
  book_.ended(number, cause, why);
}

bool Sessions::send(scheduler::SessionId number, const Handoff& message) {
  const SessionRecord* session = book_.find(number);
  return session && pool_for_(*session).send(number, message);
}

void Sessions::warn(scheduler::SessionId number, const std::string& text) {
  book_.warned(number, text);
  Handoff warning;
  warning.kind = HandoffKind::warn;
  warning.text = fmt::format("gpuwire: {}\n", text);
  send(number, warning);
}

bool Sessions::stop(scheduler::SessionId number, const std::string& reason) {
  const SessionRecord* session = book_.find(number);
  if (!session) return false;
  bool queued = session->state == SessionState::queued;
  if (!queued && pool_for_(*session).stop(number, reason)) {
    book_.ending(number);
  } else {
    if (!queued) pool_for_(*session).release(number);
    detach(*session);
    admission_.refuse(number, RefusalCause::shutting_down, reason);
  }
  return true;
}

void Sessions::stop_all(const std::string& reason) {
  std::vector<scheduler::SessionId> all;
  for (const auto& [number, session] : book_.all()) all.push_back(number);
  for (scheduler::SessionId number : all) stop(number, reason);
}

}  // namespace gpuwire::server
