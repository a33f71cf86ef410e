// From "the session has its devices" to its end: the order for its worker, the parts that attach to it, the worker itself.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "server/broker/admission.hpp"
#include "server/broker/session_parts.hpp"
#include "server/broker/worker_pool.hpp"

namespace gpuwire::server {

// The broker's thread only.
class Sessions final : public SessionControl {
 public:
  // `pool_for` a session, the management sessions' one included.
  using PoolFor = std::function<WorkerPool&(const SessionRecord&)>;
  Sessions(SessionBook& book, Admission& admission, PoolFor pool_for) : book_(book), admission_(admission), pool_for_(std::move(pool_for)) {}

  // Before the first session; the part outlives this object's last session.
  void add_part(SessionAttachments& part) { parts_.push_back(&part); }
  void devices_known(std::span<const ServerDevice> devices, const TenantDirectory& tenants);
  void tenants_changed(const TenantDirectory& tenants);

  // Admission's hook: a worker, then the parts.
  void prepare(scheduler::SessionId session);
  // The client has been told that it is admitted: its connection goes to the worker. `tls_key` as in SessionOrder.
  void serve(scheduler::SessionId session, OwnedDescriptor client, std::string tls_key);

  // The client has gone before it was served.
  void cancel(scheduler::SessionId session, const std::string& why);

  // What its pool's events are to tell. `ready` and `hopeless` are the caller's.
  WorkerPool::Events pool_events();
  // Ends all that have begun, and those that are about to.
  void stop_all(const std::string& reason);

  bool send(scheduler::SessionId session, const Handoff& message) override;
  void warn(scheduler::SessionId session, const std::string& text) override;
  bool stop(scheduler::SessionId session, const std::string& reason) override;
  void reconsider_waiting() override { admission_.reconsider(); }

 private:
  struct Prepared {
    SessionOrder order;
    Handoff handoff;
    size_t attached = 0;   // how many parts
  };
  void reserved(scheduler::SessionId session, pid_t worker);
  void begun(scheduler::SessionId session, const std::string& client);
  void heard(scheduler::SessionId session, Handoff& message);
  void ended(scheduler::SessionId session, uint32_t cause, const std::string& why);
  bool attach(const SessionRecord& session, Prepared& prepared, std::string& error);
  void detach(const SessionRecord& session);

  SessionBook& book_;
  Admission& admission_;
  const PoolFor pool_for_;
  std::vector<SessionAttachments*> parts_;
  std::map<scheduler::SessionId, Prepared> prepared_;  // from the worker on, until the session is over
};

}  // namespace gpuwire::server
