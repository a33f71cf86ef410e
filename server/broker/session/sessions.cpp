#include "server/broker/session/sessions.hpp"

#include <cstring>
#include <utility>

#include <boost/asio/post.hpp>

#include "server/broker/limits.hpp"
#include "server/ipc/end_cause.hpp"

namespace gpuwire::server {

using scheduler::SessionId;

void Sessions::devices_known(std::span<const ServerDevice> devices, const TenantDirectory& tenants) {
  std::vector<KeptEntry> none;
  restore(none, devices, tenants);
}

void Sessions::restore(std::vector<KeptEntry>& entries, std::span<const ServerDevice> devices,
                       const TenantDirectory& tenants) {
  around_.devices.assign(devices.begin(), devices.end());
  for (SessionAttachments* part : parts_) {
    part->devices_known(devices);
    if (!entries.empty()) part->restore(entries, tenants);
  }
  tenants_changed(tenants);
}

void Sessions::restore_totals(std::vector<KeptEntry>& entries) {
  for (SessionAttachments* part : parts_) part->restore_totals(entries);
}

void Sessions::adopt(const KeptSession& kept, KeptEntry entry, const std::string& unfit) {
  SessionId number = kept.record.number;
  registry_.restore(kept.record);
  sessions_[number] = std::make_unique<BrokerSession>(number, around_, kept.gpus, SessionAnswer{});
  notify(number, [&](BrokerSession& session) { session.adopt(kept, std::move(entry), unfit); });
}

void Sessions::adopt_waiting(const KeptSession& kept) {
  SessionId number = kept.record.number;
  registry_.restore(kept.record);
  sessions_[number] = std::make_unique<BrokerSession>(number, around_, kept.gpus, SessionAnswer{});
  notify(number, [&](BrokerSession& session) { session.adopt_waiting(kept.queue_round, kQueueReturnMs); });
}

void Sessions::share_again(const KeptShare& share, const ShareToken& token, OwnedDescriptor descriptor) {
  const SessionRecord* session = registry_.find(share.session);
  if (session)
    around_.pool_for(*session).share_again(share.session, token, share.kind, share.user, std::move(descriptor));
  else around_.keeping->remove(kept_name(token));
}

void Sessions::all_adopted() {
  for (SessionAttachments* part : parts_) part->all_adopted();
}

void Sessions::tenants_changed(const TenantDirectory& tenants) {
  around_.tenants = &tenants;
  for (SessionAttachments* part : parts_) part->tenants_changed(tenants);
}

template <class Event>
bool Sessions::notify(SessionId number, Event&& event) {
  auto found = sessions_.find(number);
  if (found == sessions_.end() || found->second->over()) return false;
  event(*found->second);
  return true;
}

void Sessions::forget_later(SessionId number) {
  boost::asio::post(around_.io, lifetime_.guard([this, number] { sessions_.erase(number); }));
}

WorkerPool::Events Sessions::pool_events() {
  return {.ready = [](const Inventory&) {},
          .hopeless = [](const std::string&) {},
          .reserved =
              [this](SessionId number, pid_t worker) {
                notify(number, [&](BrokerSession& session) { session.worker_reserved(worker); });
              },
          .refused =
              [this](SessionId number, RefusalCause cause, const std::string& why) {
                notify(number, [&](BrokerSession& session) { session.refused(cause, why); });
              },
          .begun =
              [this](SessionId number, const std::string& client) {
                notify(number, [&](BrokerSession& session) { session.begun(client); });
              },
          .starting =
              [this](SessionId number, size_t place, size_t waiting) {
                notify(number, [&](BrokerSession& session) { session.worker_starting(place, waiting); });
              },
          .on_message =
              [this](SessionId number, ipc::Message& message) {
                notify(number, [&](BrokerSession& session) { session.on_message(message); });
              },
          .over =
              [this](SessionId number, uint32_t cause, const std::string& why) {
                notify(number, [&](BrokerSession& session) { session.worker_over(cause, why); });
              },
          .idle = [] {},
          .reaped =
              [this] {
                for (SessionAttachments* part : parts_) part->workers_reaped();
              },
          .serving =
              [this](SessionId number, WorkerProcess& worker, const ipc::Serve& client) {
                if (around_.keeping)
                  around_.keeping->put({.session = false,
                                        .name = kKeptNumbers,
                                        .text = std::to_string(registry_.last_number()),
                                        .descriptors = {}});
                notify(number, [&](BrokerSession& session) { session.being_served(worker, client); });
              }};
}

Admission::Events Sessions::admission_events() {
  return {.placed =
              [this](SessionId number, std::vector<scheduler::DeviceIndex> devices) {
                notify(number, [&](BrokerSession& session) { session.placed(std::move(devices)); });
              },
          .queued =
              [this](SessionId number, const AdmissionQueued& place) {
                notify(number, [&](BrokerSession& session) { session.queued(place); });
              },
          .refused =
              [this](SessionId number, RefusalCause cause, std::string why) {
                notify(number, [&](BrokerSession& session) { session.refused(cause, std::move(why)); });
              },
          .crowded_out = [this](SessionId number, std::string why) { stop(number, why); }};
}

SessionId Sessions::request(LoginRequest request, SessionAnswer answer) {
  const unsigned gpus = request.gpus;
  SessionId number = registry_.add(admission_.record_of(std::move(request))).number;
  sessions_[number] = std::make_unique<BrokerSession>(number, around_, gpus, std::move(answer));
  admission_.ask(number, gpus);
  return number;
}

std::optional<SessionId> Sessions::return_to_queue(const std::string& wire_id, const LoginRequest& request,
                                                   SessionAnswer answer) {
  for (const auto& [number, session] : sessions_) {
    if (called_so(number, wire_id, request.tenant) && session->client_is_back(request, std::move(answer)))
      return number;
  }
  return std::nullopt;
}

void Sessions::serve(SessionId number, OwnedDescriptor client, std::string tls_key) {
  notify(number, [&](BrokerSession& session) { session.client_arrived(std::move(client), std::move(tls_key)); });
}

void Sessions::cancel(SessionId number, const std::string& why) {
  notify(number, [&](BrokerSession& session) { session.client_gone(why); });
}

bool Sessions::send(SessionId number, ipc::Message message) {
  const SessionRecord* session = registry_.find(number);
  return session && around_.pool_for(*session).send(number, std::move(message));
}

bool Sessions::called_so(SessionId number, const std::string& wire_id) const {
  const SessionRecord* session = registry_.find(number);
  return session && wire_id.size() == session->wire_id.size() &&
         std::memcmp(wire_id.data(), session->wire_id.data(), wire_id.size()) == 0 && !session->management;
}

bool Sessions::called_so(SessionId number, const std::string& wire_id, const std::string& tenant) const {
  return called_so(number, wire_id) && registry_.find(number)->tenant == tenant;
}

tl::expected<const SessionRecord*, std::string> Sessions::resumable(const std::string& wire_id,
                                                                    const std::string& tenant) const {
  for (const auto& [number, session] : sessions_) {
    if (!called_so(number, wire_id)) continue;
    const std::string& owner = registry_.find(number)->tenant;
    if (owner == tenant && server::resumable(session->phase())) return registry_.find(number);
    if (owner != tenant && !is_gone(owner)) continue;
    if (!session->stop_reason().empty()) return tl::unexpected("the session has ended: " + session->stop_reason());
  }
  const std::string why =
      ended_.why([&](const std::string& owner) { return owner == tenant || is_gone(owner); }, wire_id);
  return tl::unexpected(why.empty() ? "the session has ended" : "the session has ended: " + why);
}

// A removed tenant's clients reconnect as another tenant, so any tenant may be told why its sessions have ended.
bool Sessions::is_gone(const std::string& tenant) const {
  const Tenant* found = around_.tenants ? around_.tenants->find(tenant) : nullptr;
  return around_.tenants && !(found && found->known);
}

// A client that finished its session does not reconnect to it.
void Sessions::note_end(const SessionEvent& event) {
  if (event.kind != SessionEvent::Kind::ended || event.session.management) return;
  if (event.end_cause != uint32_t(EndCause::finished))
    ended_.add(event.session.tenant, event.session.wire_id, event.text);
}

bool Sessions::takes_connections(SessionId number) {
  const SessionRecord* session = registry_.find(number);
  return session && around_.pool_for(*session).takes_descriptor(number);
}

void Sessions::carry_on(SessionId number, OwnedDescriptor client, std::string tls_key) {
  const SessionRecord* session = registry_.find(number);
  if (!session) return;
  ipc::Attach connection{std::move(client), std::move(tls_key)};
  if (!around_.pool_for(*session).hand(number, std::move(connection)))
    registry_.resume_refused(number,
                             "its worker accepts no connections: too many are waiting for it, and it reads none");
}

void Sessions::warn(SessionId number, const std::string& text) {
  registry_.warned(number, text);
  send(number, ipc::Warn{text});
}

bool Sessions::stop(SessionId number, const StopOrder& order) {
  return notify(number, [&](BrokerSession& session) { session.stop(order); });
}

OwnedDescriptor Sessions::worker_process(SessionId number) {
  const SessionRecord* session = registry_.find(number);
  return session ? around_.pool_for(*session).process_of(number) : OwnedDescriptor();
}

void Sessions::note(SessionId number) {
  notify(number, [](BrokerSession& session) { session.note(); });
}

void Sessions::stop_all(const std::string& reason) {
  std::vector<SessionId> all;
  for (const auto& [number, session] : registry_.all()) all.push_back(number);
  for (SessionId number : all) stop(number, reason);
}

}  // namespace gpuwire::server
