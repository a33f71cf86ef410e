// One session from its client's login to its end: its place in the queue, its worker, what the parts attach, and the
// answer to its client.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "server/base/lifetime.hpp"
#include "server/broker/admission/admission.hpp"
#include "server/broker/session/session_parts.hpp"
#include "server/broker/session/session_state.hpp"
#include "server/broker/worker/worker_pool.hpp"

namespace gpuwire::server {

// How long a session stays without a connection.
struct SessionGraces {
  std::chrono::milliseconds resume{0};   // 0: it ends with its connection
  std::chrono::milliseconds hang_up{0};  // where the connection was ended and not lost
};

// What a session needs of the broker around it.
struct SessionDeps {
  boost::asio::io_context& io;
  SessionRegistry& registry;
  Admission& admission;
  const std::vector<SessionAttachments*>& parts;
  std::function<WorkerPool&(const SessionRecord&)> pool_for;
  uint32_t begin_ms;  // from the word that it is granted until its client has begun it
  // Nothing happens to it any more. Must not destroy it before the call that led here is over.
  std::function<void(scheduler::SessionId)> over;
  EntryStore* keeping = nullptr;           // null: nothing outlives the broker
  std::vector<ServerDevice> devices = {};  // of the server, when they are known
  SessionGraces graces{};
  std::optional<unsigned> lanes_max;         // SessionSpec's; without it the usual number for the connection
  const TenantDirectory* tenants = nullptr;  // whose settings bound its times; null: nobody's
};

// What its client is told: its place at first and whenever that changes, then that it is admitted or refused, once.
using SessionAnswer = std::function<void(scheduler::SessionId, const AdmissionAnswer&)>;

// Its functions are what may happen to it; session_state.cpp has the table of what each leads to in which phase. Any of
// them may be called at any time. The broker's thread only.
class BrokerSession {
 public:
  // `gpus`: as in LoginRequest. `answer`: empty: its client is not there.
  BrokerSession(scheduler::SessionId number, const SessionDeps& around, unsigned gpus, SessionAnswer answer);
  BrokerSession(const BrokerSession&) = delete;
  BrokerSession& operator=(const BrokerSession&) = delete;

  // It runs, as an earlier broker has noted. `unfit`: not empty: why it has to end; then the parts have nothing to do
  // with it.
  void adopt(const KeptSession& kept, KeptEntry entry, const std::string& unfit);
  // It waits in the queue, as an earlier broker has noted, for its client, too: that has `return_ms` to come back.
  void adopt_waiting(uint64_t round, uint32_t return_ms);
  // False: it does not wait for its client.
  bool client_is_back(const LoginRequest& request, SessionAnswer answer);

  // The admission's decisions.
  void queued(const AdmissionQueued& place);
  // It has its GPUs, and waits for long for a worker.
  void worker_starting(size_t place, size_t waiting);
  void placed(std::vector<scheduler::DeviceIndex> devices);
  void refused(RefusalCause cause, std::string why);

  void worker_reserved(pid_t worker);
  // The worker is about to get the client. What the next broker has to know is laid down before.
  void being_served(WorkerProcess& worker, const ipc::Serve& client);
  // The client's connection, after the word that the session is granted. `tls_key` as in SessionSpec.
  void client_arrived(OwnedDescriptor client, std::string tls_key);
  // The client has gone before its connection arrived.
  void client_gone(const std::string& why);
  void begun(const std::string& client);
  void on_message(ipc::Message& message);
  void stop(const StopOrder& order);
  void worker_over(uint32_t cause, const std::string& why);

  // What the next broker has to know has changed.
  void note();

  SessionPhase phase() const { return phase_; }
  bool over() const { return phase_ == SessionPhase::over; }
  // Not empty: why it is to end.
  const std::string& stop_reason() const { return stop_.why; }

 private:
  struct Client {
    OwnedDescriptor socket;
    std::string tls_key;
  };
  // What is known of a change; each change has its own.
  struct Details {
    RefusalCause refusal = RefusalCause::internal;
    uint32_t end_cause = SessionEvent::kDied;
    std::string text;  // why; or who the client says it is
    std::chrono::milliseconds grace{0};
    StopKind stop = StopKind::ended;
  };

  void happen(SessionChange change) { happen(change, Details()); }
  void happen(SessionChange change, Details details);
  void act(SessionAction action, Details& details);

  const SessionRecord& record() const { return *around_.registry.find(number_); }
  WorkerPool& pool() { return around_.pool_for(record()); }
  void want_worker();
  void prepare_order();
  void grant();
  // How long its client may take until the session has begun.
  void limit_begin();
  const Tenant* tenant(const SessionRecord& session) const;  // null: not known
  void give();
  void allow_graces(const SessionRecord& session);
  // What its worker tells of its connection. False: it is something else.
  bool on_connection_message(const ipc::Message& message);
  bool attach(std::string& error);
  KeptSession kept() const;
  void keep_place();
  void detach();
  void overdue_after(uint32_t ms, const char* what);
  void answer(const AdmissionAnswer& what);
  void withdraw(const Details& details);
  void refuse(Details& details);
  void end(Details& details);
  // Whoever is reserved for it may have another; one that serves it ends by itself.
  void pool_release();
  void give_back();
  void forget_entry();

  const scheduler::SessionId number_;
  const SessionDeps& around_;
  const unsigned gpus_;
  uint64_t round_ = 0;    // while it waits: of its tenant's turns
  SessionAnswer answer_;  // empty: nobody is there to be told, or everything is said
  SessionPhase phase_ = SessionPhase::queued;
  bool wanted_worker_ = false;
  unsigned workers_lost_ = 0;     // that died before they had the client
  std::optional<Client> client_;  // arrived, while there is no worker
  StopOrder stop_;                // its reason not empty: it is to end as soon as its client can be told
  SessionSpec spec_;
  ipc::SessionDescriptors descriptors_;  // of the parts, until the worker has them
  std::string entry_;                    // the name of what is laid down for the next broker; empty: nothing is
  size_t attached_ = 0;                  // how many parts
  boost::asio::steady_timer overdue_timer_;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
