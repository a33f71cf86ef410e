// Sessions has all sessions, from their clients' logins on, and routes events of pools, of the login and of the parts
// to them.
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
  // `pool_for`: returns the session's pool, also for management sessions. `begin_ms`: the time from the grant within
  // which the client has to begin the session.
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

  // Precondition: no session yet. The part outlives this object's last session.
  void add_part(SessionAttachments& part) { parts_.push_back(&part); }
  void devices_known(std::span<const ServerDevice> devices, const TenantDirectory& tenants);
  // The directory outlives the sessions.
  void tenants_changed(const TenantDirectory& tenants);

  // Precondition: no session yet.
  void keep(EntryStore* keeping) { around_.keeping = keeping; }
  // For sessions of an earlier broker: restore() once, instead of tenants_changed(), then adopt() for each, then
  // all_adopted().
  void restore(std::vector<KeptEntry>& entries, std::span<const ServerDevice> devices, const TenantDirectory& tenants);
  void restore_totals(std::vector<KeptEntry>& entries);
  // Precondition: `kept.record` has the tenant's number.
  void adopt(const KeptSession& kept, KeptEntry entry, const std::string& unfit);
  // Adopts a queued session. Precondition: called in the order of numbers, after all running sessions.
  void adopt_waiting(const KeptSession& kept);
  void share_again(const KeptShare& share, const ShareToken& token, OwnedDescriptor descriptor);
  void all_adopted();

  // Makes a session for a client whose tenant is known. Answers may come before this returns.
  scheduler::SessionId request(LoginRequest request, SessionAnswer answer);
  // Returns the queued session of an earlier broker whose identity the client shows; nothing: there is none.
  std::optional<scheduler::SessionId> return_to_queue(const std::string& wire_id, const LoginRequest& request,
                                                      SessionAnswer answer);
  // The handlers of the admission's decisions.
  Admission::Events admission_events();
  // Passes the connection of a client that has its grant to the worker. `tls_key` as in SessionSpec.
  void serve(scheduler::SessionId session, OwnedDescriptor client, std::string tls_key);

  // For sessions that begin from now on, before their tenants' own bounds.
  void set_graces(const SessionGraces& graces) { around_.graces = graces; }
  void set_lanes_max(std::optional<unsigned> lanes) { around_.lanes_max = lanes; }
  // Returns the tenant's session of this identity, if it may be resumed over another connection. The error is a text
  // for the client.
  tl::expected<const SessionRecord*, std::string> resumable(const std::string& wire_id,
                                                            const std::string& tenant) const;
  // Whether its worker may be sent one more connection: it has read enough of the earlier ones.
  bool takes_connections(scheduler::SessionId session);
  // Sends a connection to the session's worker, which verifies that it is its client's. It is closed and audited where
  // the worker can take none.
  void carry_on(scheduler::SessionId session, OwnedDescriptor client, std::string tls_key);

  // The client has left before it was served.
  void cancel(scheduler::SessionId session, const std::string& why);

  // Returns the handlers of a pool's events, without `ready` and `hopeless`, which the caller sets.
  WorkerPool::Events pool_events();
  // Ends all sessions that have begun or are about to.
  void stop_all(const std::string& reason);

  bool send(scheduler::SessionId session, ipc::Message message) override;
  void warn(scheduler::SessionId session, const std::string& text) override;
  bool stop(scheduler::SessionId session, const StopOrder& order) override;
  OwnedDescriptor worker_process(scheduler::SessionId session) override;
  void note(scheduler::SessionId session) override;
  void reconsider_waiting() override { admission_.reconsider(); }

 private:
  // Whether the session runs a program and has this identity; the second one: and is the tenant's, too.
  bool called_so(scheduler::SessionId session, const std::string& wire_id) const;
  bool called_so(scheduler::SessionId session, const std::string& wire_id, const std::string& tenant) const;
  // Whether the tenant was removed from the configuration.
  bool is_gone(const std::string& tenant) const;
  void note_end(const SessionEvent& event);
  // Passes an event to the session. False: there is no such session (any more).
  template <class Event>
  bool notify(scheduler::SessionId session, Event&& event);
  // Destroys the session later: it may be in the middle of an event.
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
