// The sessions that there are, from their clients' logins on: events of pools, of the login and of the parts go to the
// one that they are about.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "server/base/lifetime.hpp"
#include "server/broker/admission/admission.hpp"
#include "server/broker/session/broker_session.hpp"
#include "server/broker/session/ended_sessions.hpp"
#include "server/broker/session/session_parts.hpp"
#include "server/broker/worker/worker_pool.hpp"

namespace gpuwire::server {

// The broker's thread only.
class Sessions final : public SessionControl {
 public:
  // `pool_for` a session, the management sessions' one included. `begin_ms`: how long a client that has been granted
  // its session has to begin it.
  using PoolFor = std::function<WorkerPool&(const SessionRecord&)>;
  Sessions(boost::asio::io_context& io, SessionRegistry& registry, Admission& admission, PoolFor pool_for,
           uint32_t begin_ms)
      : registry_(registry),
        admission_(admission),
        around_{io, registry, admission, parts_, std::move(pool_for), begin_ms, [this](scheduler::SessionId over) {
                  forget_later(over);
                }} {
    registry_.observe([this](const SessionEvent& event) { note_end(event); });
  }

  // Before the first session; the part outlives this object's last session.
  void add_part(SessionAttachments& part) { parts_.push_back(&part); }
  void devices_known(std::span<const ServerDevice> devices, const TenantDirectory& tenants);
  // The directory stays.
  void tenants_changed(const TenantDirectory& tenants);

  // Before the first session.
  void keep(EntryStore* keeping) { around_.keeping = keeping; }
  // Sessions of an earlier broker: restore() once, instead of tenants_changed(), then each, then all_adopted().
  void restore(std::vector<KeptEntry>& entries, std::span<const ServerDevice> devices, const TenantDirectory& tenants);
  void restore_totals(std::vector<KeptEntry>& entries);
  // `kept.record` names a tenant by number.
  void adopt(const KeptSession& kept, KeptEntry entry, const std::string& unfit);
  // One that waited in the queue; in the order of their numbers, after all that run.
  void adopt_waiting(const KeptSession& kept);
  void share_again(const KeptShare& share, const ShareToken& token, OwnedDescriptor descriptor);
  void all_adopted();

  // A client whose tenant the login knows. Answers may come before this returns.
  scheduler::SessionId request(LoginRequest request, SessionAnswer answer);
  // One that has waited under an earlier broker, and shows the identity that it was given there. Nothing: it has no
  // place here.
  std::optional<scheduler::SessionId> return_to_queue(const std::string& wire_id, const LoginRequest& request,
                                                      SessionAnswer answer);
  // What the admission decides.
  Admission::Events admission_events();
  // The client has been told that it is admitted: its connection goes to the worker. `tls_key` as in SessionSpec.
  void serve(scheduler::SessionId session, OwnedDescriptor client, std::string tls_key);

  // Of sessions that begin from now on, before their tenants' own bounds.
  void set_graces(const SessionGraces& graces) { around_.graces = graces; }
  void set_lanes_max(std::optional<unsigned> lanes) { around_.lanes_max = lanes; }
  // The tenant's session that is called so and may be carried on over another connection. The error tells its client
  // why there is none.
  tl::expected<const SessionRecord*, std::string> resumable(const std::string& wire_id,
                                                            const std::string& tenant) const;
  // Whether its worker may be given one more connection: it reads what it is sent.
  bool takes_connections(scheduler::SessionId session);
  // A connection of its client, which the worker has to prove yet. It is closed, and audited, where the worker takes
  // none.
  void carry_on(scheduler::SessionId session, OwnedDescriptor client, std::string tls_key);

  // The client has gone before it was served.
  void cancel(scheduler::SessionId session, const std::string& why);

  // What its pool's events are to tell. `ready` and `hopeless` are the caller's.
  WorkerPool::Events pool_events();
  // Ends all that have begun, and those that are about to.
  void stop_all(const std::string& reason);

  bool send(scheduler::SessionId session, ipc::Message message) override;
  void warn(scheduler::SessionId session, const std::string& text) override;
  bool stop(scheduler::SessionId session, const StopOrder& order) override;
  void reconsider_waiting() override { admission_.reconsider(); }

 private:
  // Whether the identity is that of this session, which runs a program; and whether it is also the tenant's.
  bool called_so(scheduler::SessionId session, const std::string& wire_id) const;
  bool called_so(scheduler::SessionId session, const std::string& wire_id, const std::string& tenant) const;
  // Whether the configuration has no such tenant any more.
  bool is_gone(const std::string& tenant) const;
  void note_end(const SessionEvent& event);
  // Tells the session of an event. False: there is none (any more).
  template <class Event>
  bool notify(scheduler::SessionId session, Event&& event);
  // Not now: one event leads to another, and the session is in the middle of them.
  void forget_later(scheduler::SessionId session);

  SessionRegistry& registry_;
  Admission& admission_;
  std::vector<SessionAttachments*> parts_;
  SessionDeps around_;
  std::map<scheduler::SessionId, std::unique_ptr<BrokerSession>> sessions_;
  EndedSessions ended_;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
