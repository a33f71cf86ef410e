// One session from the moment that it has its devices to its end: its worker, what the parts attach, and the answer to its client.
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
#include "server/broker/worker/worker_pool.hpp"

namespace gpuwire::server {

// How long a session stays without a connection.
struct SessionGraces {
  std::chrono::milliseconds resume{0};   // 0: it ends with its connection
  std::chrono::milliseconds hang_up{0};  // where the connection was ended and not lost
};

// What a session needs of the broker around it.
struct SessionSurroundings {
  boost::asio::io_context& io;
  SessionRegistry& registry;
  Admission& admission;
  const std::vector<SessionAttachments*>& parts;
  std::function<WorkerPool&(const SessionRecord&)> pool_for;
  uint32_t begin_ms;  // from the word that it is granted until its client has begun it
  // Nothing happens to it any more. Must not destroy it before the call that led here is over.
  std::function<void(scheduler::SessionId)> over;
  EntryStore* keeping = nullptr;              // null: nothing outlives the broker
  std::vector<ServerDevice> devices = {};     // of the server, when they are known
  SessionGraces graces{};
  const TenantDirectory* tenants = nullptr;  // whose settings bound the graces; null: nobody's
};

// Its functions are the events of its life; README.md has the table of which leads where. Each of them may be called in every stage, and each way out of a stage answers
// the client. The broker's thread only.
class BrokerSession {
 public:
  BrokerSession(scheduler::SessionId number, const SessionSurroundings& around);
  BrokerSession(const BrokerSession&) = delete;
  BrokerSession& operator=(const BrokerSession&) = delete;

  // Its devices are known: it wants a worker.
  void start();
  // Instead of start(): it runs, as an earlier broker has noted. `unfit`: not empty: why it has to end; then the parts have nothing to do with it.
  void adopt(const KeptSession& kept, KeptEntry entry, const std::string& unfit);
  void worker_reserved(pid_t worker);
  // The worker is about to get the client. What the next broker has to know is laid down before.
  void being_served(WorkerProcess& worker, const IpcMessage& client);
  void no_worker(RefusalCause cause, const std::string& why);
  // The client's connection, after the word that the session is granted. `tls_key` as in SessionSpec.
  void client_arrived(OwnedDescriptor client, std::string tls_key);
  // The client has gone before its connection arrived.
  void client_gone(const std::string& why);
  void begun(const std::string& client);
  void heard(IpcMessage& message);
  void stop(const std::string& reason);
  void worker_over(uint32_t cause, const std::string& why);

  // What the next broker has to know has changed.
  void note();

  bool over() const { return stage_ == Stage::over; }

 private:
  // starting: a worker is on its way; granted: the client knows, and is on its way; running: the client has begun it; over: everything is given back.
  enum class Stage : uint8_t { starting, granted, running, over };
  struct Client {
    OwnedDescriptor socket;
    std::string tls_key;
  };

  const SessionRecord& record() const { return *around_.registry.find(number_); }
  WorkerPool& pool() { return around_.pool_for(record()); }
  void want_worker();
  void allow_graces(const SessionRecord& session);
  // What its worker tells of its connection. False: it is something else.
  bool heard_of_connection(const IpcMessage& message);
  bool attach(std::string& error);
  KeptSession kept() const;
  void detach();
  void give();
  void await_begin();
  void refuse(RefusalCause cause, std::string why);
  void end(uint32_t cause, const std::string& why);
  void give_back();

  const scheduler::SessionId number_;
  const SessionSurroundings& around_;
  Stage stage_ = Stage::starting;
  bool has_worker_ = false;        // one is reserved for it, or serves it
  bool given_ = false;             // the pool has the client
  unsigned workers_lost_ = 0;      // that died before they had the client
  std::optional<Client> client_;   // arrived, while there is no worker
  std::string stop_reason_;        // not empty: it is to end as soon as its client can be told
  SessionSpec order_;
  IpcMessage message_;
  bool kept_ = false;              // its entry is laid down
  size_t attached_ = 0;            // how many parts
  boost::asio::steady_timer begin_timer_;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
