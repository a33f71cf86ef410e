// The worker processes: started ahead, given one client each, watched until they have ended.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>

#include "scheduler/types.hpp"
#include "server/base/descriptor_closer.hpp"
#include "server/base/lifetime.hpp"
#include "server/ipc/message.hpp"
#include "server/broker/keeper/keeping.hpp"
#include "server/broker/session/session_registry.hpp"
#include "server/broker/session/share_table.hpp"
#include "server/broker/worker/unread_descriptors.hpp"
#include "server/broker/worker/worker_process.hpp"
#include "server/broker/worker/worker_starts.hpp"
#include "server/broker/worker/worker_wait.hpp"

namespace gpuwire::server {

// Runs on the broker's one thread. Keeps spare workers ready beside those in use; a start that fails is repeated with
// growing delays, and after kStartAttemptsMax failures in a row only when the next session asks.
class WorkerPool {
 public:
  using SessionId = scheduler::SessionId;
  struct Events {
    std::function<void(const Inventory&)> ready;              // a worker has become ready; what it said
    std::function<void(const std::string& reason)> hopeless;  // kStartAttemptsMax starts in a row have failed
    std::function<void(SessionId, pid_t worker)> reserved;    // a worker waits for the session's client
    std::function<void(SessionId, RefusalCause cause, const std::string& reason)> refused;  // no worker can be had
    std::function<void(SessionId, const std::string& client)> begun;
    // The session waits for long for a worker to start: its place among those of the pool that do, counted from 1.
    std::function<void(SessionId, size_t place, size_t waiting)> starting = {};
    std::function<void(SessionId, ipc::Message& message)> on_message;  // what the pool has no use for
    std::function<void(SessionId, uint32_t cause, const std::string& why)>
        over;                    // the process has ended; cause as in SessionEvent
    std::function<void()> idle;  // perhaps idle() now
    // Processes have ended, whatever they did is done, and over() follows for each that served a session.
    std::function<void()> reaped = {};
    // The worker is about to get the session's client, as this message says; may be another worker than the one that
    // was reserved.
    std::function<void(SessionId, WorkerProcess&, const ipc::Serve& client)> serving = {};
    std::function<void()> starts_changed = {};  // what it wishes of `starts`, or what these count, is another
    std::function<void()> wanted = {};          // a session wants a worker
    std::function<void(std::chrono::steady_clock::duration)> started = {};  // what it took a worker to become ready
  };

  // `keeping` outlives it. `shares`, `unread`: of all the pools whose sessions may share with each other. `starts`: of
  // all pools, where this one is called `number`; they say when it starts a worker, and who gets one.
  WorkerPool(boost::asio::io_context& io, WorkerCommand command, ShareTable& shares, UnreadDescriptors& unread,
             WorkerStarts& starts, WorkerStarts::Pool number, Events events, EntryStore* keeping = nullptr);
  ~WorkerPool();

  // From now on. Those that are too many end when they are ready.
  void keep_prewarmed(unsigned prewarmed);
  // Workers that are ready or start and that no session waits for.
  size_t prewarmed() const;
  // Those that were told to end before they had a client, and are not gone.
  size_t ending() const { return count(WorkerProcess::State::ending); }
  // Ends so many of prewarmed() now, those first that have not started yet; others are started when keep_prewarmed()
  // says so.
  void end_prewarmed(size_t prewarmed);
  // One worker even when no spare is wanted, because its ready message says what devices there are.
  void start_one_more();
  // It is its turn (WorkerStarts::next).
  void start_one();
  // There are no processes, and nobody waits for one.
  bool idle() const { return workers_.empty() && waiting_.empty(); }
  // A worker for the session: ends in Events::reserved or refused, perhaps before this returns. `label`: for logs.
  void want(SessionId session, std::string label, std::string tenant);
  // The client of a session that has a worker: ends in Events::over.
  void give(SessionId session, ipc::Serve client);
  // A worker that an earlier broker has left, and that serves the session: ends in Events::over.
  void adopt(SessionId session, std::string label, std::string tenant, OwnedDescriptor worker, OwnedDescriptor process,
             pid_t pid);
  // What the session's worker shares with others, as an earlier broker has noted it.
  void share_again(SessionId session, const ShareToken& token, uint32_t kind, std::string user,
                   OwnedDescriptor descriptor);
  // Those that serve sessions go on when this pool goes.
  void let_go();
  // The session is not wanted any more; no event comes. For one that was not given.
  void release(SessionId session);
  // False: no worker serves it, or has not read for long.
  bool send(SessionId session, ipc::Message message);
  // As send(), one with a descriptor, where the worker has not left too many of those unread.
  bool hand(SessionId session, ipc::Message message);
  bool takes_descriptor(SessionId session);
  // Ends a session that was given; it is killed kWorkerExitMs later if it has not ended. False: there is none.
  bool stop(SessionId session, const StopOrder& order);

  // Starts no more, ends the spares, refuses who waits. Running sessions go on.
  void close(const std::string& reason);

 private:
  struct Waiting {
    SessionId session{};
    std::string label, tenant;
    WorkerWait wait;
    std::optional<ipc::Serve> client;  // it was given to a worker that died before it could read it
    StopOrder stop;                    // its reason not empty: the next worker is told to end it at once
  };
  void wish();
  void trim();
  void end_unused(WorkerProcess& worker);
  void start_failed(const std::string& reason);
  void retry_later();
  void on_message(WorkerProcess& worker, ipc::Message message);
  void worker_ready(WorkerProcess& worker, const Inventory& inventory);
  static void end_distrusted(WorkerProcess& worker, const std::string& what);
  void keep_share(SessionId session, const ShareToken& token, uint32_t kind, const std::string& user,
                  OwnedDescriptor descriptor);
  void answer_share(WorkerProcess& worker, ipc::Share share);
  void answer_claim(WorkerProcess& worker, const ipc::Claim& claim);
  void match();
  void watch(WorkerProcess& worker);
  void reserve(WorkerProcess& worker, Waiting one);
  void hand_over(WorkerProcess& worker, ipc::Serve client);
  WorkerProcess* worker_of(SessionId session);
  void refuse_late();
  void refuse_all(RefusalCause cause, const std::string& reason);
  void await_children();
  void reap();
  WorkerProcess::Events worker_events();
  void ended(WorkerProcess& worker, const std::string& how);
  void ended_silently(WorkerProcess& worker, const std::string& how);
  size_t count(WorkerProcess::State state) const;

  boost::asio::io_context& io_;
  const WorkerCommand command_;
  unsigned prewarmed_ = 0;
  const Events events_;
  boost::asio::signal_set children_;
  boost::asio::steady_timer retry_timer_;
  boost::asio::steady_timer late_timer_;
  DescriptorCloser closer_;  // of what workers send and may not; outlives them
  std::list<std::unique_ptr<WorkerProcess>> workers_;
  std::list<Waiting> waiting_;  // oldest first; bounded by Admission::Limits
  ShareTable& shares_;
  UnreadDescriptors& unread_;
  WorkerStarts& starts_;
  const WorkerStarts::Pool number_;
  EntryStore* const keeping_;  // null: nothing outlives the broker
  unsigned failures_ = 0;      // in a row
  bool retrying_ = false;
  bool matching_ = false, match_again_ = false;
  bool closed_ = false;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
