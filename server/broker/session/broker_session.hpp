// A BrokerSession is one session from its client's login to its end: its place in the queue, its worker, its
// attachments, and the answer to its client.
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
  // 0: it ends with its connection.
  std::chrono::milliseconds resume{0};
  // Where the client has closed the connection.
  std::chrono::milliseconds hang_up{0};
};

// The parts of the broker that a session uses.
struct SessionDeps {
  boost::asio::io_context& io;
  SessionRegistry& registry;
  Admission& admission;
  const std::vector<SessionAttachments*>& parts;
  std::function<WorkerPool&(const SessionRecord&)> pool_for;
  // From the grant until the client has begun the session.
  uint32_t begin_ms;
  // The session is over. Must not destroy it before the call that led here returns.
  std::function<void(scheduler::SessionId)> over;
  // Null: nothing outlives the broker.
  EntryStore* keeping = nullptr;
  // The server's, when they are known.
  std::vector<ServerDevice> devices = {};
  SessionGraces graces{};
  // As in SessionSpec; without it the usual number for the connection.
  std::optional<unsigned> lanes_max;
  // Their settings bound the session's times; null: no bounds.
  const TenantDirectory* tenants = nullptr;
};

// Sends an answer to the session's client: its place at first and after each change, then the grant or the refusal,
// once.
using SessionAnswer = std::function<void(scheduler::SessionId, const AdmissionAnswer&)>;

// Each public function is an event of the session; session_state.cpp has the table of actions and next phases. Each may
// be called in any phase. The broker's thread only.
class BrokerSession {
 public:
  // `gpus`: as in LoginRequest. `answer`: empty while its client is away.
  BrokerSession(scheduler::SessionId number, const SessionDeps& around, unsigned gpus, SessionAnswer answer);
  BrokerSession(const BrokerSession&) = delete;
  BrokerSession& operator=(const BrokerSession&) = delete;

  // Continues a running session of an earlier broker. `unfit`: not empty: why it has to end; then no part adopts it.
  void adopt(const KeptSession& kept, KeptEntry entry, const std::string& unfit);
  // Continues a queued session of an earlier broker. It also waits for its client, which has `return_ms` to return.
  void adopt_waiting(uint64_t round, uint32_t return_ms);
  // Returns false if the session does not wait for its client.
  bool client_is_back(const LoginRequest& request, SessionAnswer answer);

  // The admission's decisions arrive here.
  void queued(const AdmissionQueued& place);
  // The session has its GPUs, and has waited long for a worker.
  void worker_starting(size_t place, size_t waiting);
  void placed(std::vector<scheduler::DeviceIndex> devices);
  void refused(RefusalCause cause, std::string why);

  void worker_reserved(pid_t worker);
  // The worker is about to get the client. Stores the session's entry for the next broker before that.
  void being_served(WorkerProcess& worker, const ipc::Serve& client);
  // The client's connection arrives, after the grant. `tls_key` as in SessionSpec.
  void client_arrived(OwnedDescriptor client, std::string tls_key);
  // The client has left before its connection arrived.
  void client_gone(const std::string& why);
  void begun(const std::string& client);
  void on_message(ipc::Message& message);
  void stop(const StopOrder& order);
  void worker_over(uint32_t cause, const std::string& why);

  // Updates the session's entry for the next broker.
  void note();

  SessionPhase phase() const { return phase_; }
  bool over() const { return phase_ == SessionPhase::over; }
  // Not empty: the reason for its ordered end.
  const std::string& stop_reason() const { return stop_.why; }

 private:
  struct Client {
    OwnedDescriptor socket;
    std::string tls_key;
  };
  // The details of a change; each change uses some of these fields.
  struct Details {
    RefusalCause refusal = RefusalCause::internal;
    uint32_t end_cause = SessionEvent::kDied;
    // The reason; or the client's description of itself.
    std::string text;
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
  // Starts the timer within which the client has to begin the session.
  void limit_begin();
  // Null: not known.
  const Tenant* tenant(const SessionRecord& session) const;
  void give();
  void allow_graces(const SessionRecord& session);
  // Handles a worker's message about the client's connection. Returns false for any other message.
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
  // Releases a reserved worker; a worker that serves the session ends by itself.
  void pool_release();
  void give_back();
  void forget_entry();

  const scheduler::SessionId number_;
  const SessionDeps& around_;
  const unsigned gpus_;
  // While queued: of its tenant's turns.
  uint64_t round_ = 0;
  // Empty: no client is there, or it has its final answer.
  SessionAnswer answer_;
  SessionPhase phase_ = SessionPhase::queued;
  bool wanted_worker_ = false;
  // Workers that died before they had the client.
  unsigned workers_lost_ = 0;
  // Set while the client waits for a worker.
  std::optional<Client> client_;
  // Its reason is not empty if the session has to end as soon as its client can be told.
  StopOrder stop_;
  SessionSpec spec_;
  // From the parts, until the worker has them.
  ipc::SessionDescriptors descriptors_;
  // The name of the session's entry with the keeper; empty: none.
  std::string entry_;
  // The number of attached parts.
  size_t attached_ = 0;
  boost::asio::steady_timer overdue_timer_;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
