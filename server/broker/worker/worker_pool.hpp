// WorkerPool has worker processes: it starts them ahead, gives each one client, and watches them until they have ended.
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

// Runs on the broker's one thread. Keeps prewarmed workers ready beside those in use; a start that fails is repeated
// with growing delays, and after kStartAttemptsMax failures in a row only when the next session asks.
class WorkerPool {
 public:
  using SessionId = scheduler::SessionId;
  struct Events {
    // A worker has become ready; its inventory.
    std::function<void(const Inventory&)> ready;
    // kStartAttemptsMax starts in a row have failed.
    std::function<void(const std::string& reason)> hopeless;
    // A worker waits for the session's client.
    std::function<void(SessionId, pid_t worker)> reserved;
    // No worker can be started.
    std::function<void(SessionId, RefusalCause cause, const std::string& reason)> refused;
    std::function<void(SessionId, const std::string& client)> begun;
    // The session has waited long for a worker to start: its place among the pool's waiting sessions, counted from 1.
    std::function<void(SessionId, size_t place, size_t waiting)> starting = {};
    // A message that the pool does not handle.
    std::function<void(SessionId, ipc::Message& message)> on_message;
    // The process has ended; cause as in SessionEvent.
    std::function<void(SessionId, uint32_t cause, const std::string& why)> over;
    // idle() may be true now.
    std::function<void()> idle;
    // Processes have ended, with all their effects done; over() follows for each that served a session.
    std::function<void()> reaped = {};
    // The worker is about to get the session's client by this message; it may be another worker than the reserved one.
    std::function<void(SessionId, WorkerProcess&, const ipc::Serve& client)> serving = {};
    // The pool's requests to `starts`, or the counted starts, have changed.
    std::function<void()> starts_changed = {};
    // A session wants a worker.
    std::function<void()> wanted = {};
    // the time that a worker took to become ready
    std::function<void(std::chrono::steady_clock::duration)> started = {};
  };

  // `keeping` outlives the pool. `shares`, `unread`: common to all pools whose sessions may share with each other.
  // `starts`: common to all pools; `number` identifies this one. `starts` decides when the pool starts a worker, and
  // which session gets one.
  WorkerPool(boost::asio::io_context& io, WorkerCommand command, ShareTable& shares, UnreadDescriptors& unread,
             WorkerStarts& starts, WorkerStarts::Pool number, Events events, EntryStore* keeping = nullptr);
  ~WorkerPool();

  // Sets the number of prewarmed workers from now on. Surplus workers end when they are ready.
  void keep_prewarmed(unsigned prewarmed);
  // Returns the number of ready or starting workers that no session waits for.
  size_t prewarmed() const;
  // Returns the number of workers that were told to end before they had a client, and have not exited.
  size_t ending() const { return count(WorkerProcess::State::ending); }
  // Ends so many of prewarmed() now, starting workers first; replacements start as keep_prewarmed() says.
  void end_prewarmed(size_t prewarmed);
  // Starts one worker even when no prewarmed worker is wanted: its ready message reports the devices.
  void start_one_more();
  // Starts one worker: it is the pool's turn (WorkerStarts::next).
  void start_one();
  // Whether the pool has neither processes nor waiting sessions.
  bool idle() const { return workers_.empty() && waiting_.empty(); }
  // Requests a worker for the session: ends in Events::reserved or refused, perhaps before this returns. `label`: for
  // logs.
  void want(SessionId session, std::string label, std::string tenant);
  // Gives the client to the session's reserved worker: ends in Events::over.
  void give(SessionId session, ipc::Serve client);
  // Adopts a worker of an earlier broker, which serves the session: ends in Events::over.
  void adopt(SessionId session, std::string label, std::string tenant, OwnedDescriptor worker, OwnedDescriptor process,
             pid_t pid);
  // Enters a share of the session's worker, from an earlier broker's entry.
  void share_again(SessionId session, const ShareToken& token, uint32_t kind, std::string user,
                   OwnedDescriptor descriptor);
  // Lets workers that serve sessions outlive this pool.
  void let_go();
  // Withdraws the session's request; no event follows. Precondition: give() was not called for it.
  void release(SessionId session);
  // Returns false if no worker serves the session, or the worker has not read for long.
  bool send(SessionId session, ipc::Message message);
  // As send(), for a message with a descriptor; fails also if the worker has too many unread descriptors.
  bool hand(SessionId session, ipc::Message message);
  bool takes_descriptor(SessionId session);
  // Returns a copy of the pidfd of the worker that serves the session; empty: none does, or no descriptor is left.
  OwnedDescriptor process_of(SessionId session);
  // Ends a served session; its worker is killed kWorkerExitMs later if it has not exited. Returns false if no worker
  // serves it.
  bool stop(SessionId session, const StopOrder& order);

  // Starts no more workers, ends the prewarmed workers, refuses waiting sessions. Running sessions continue.
  void close(const std::string& reason);

 private:
  struct Waiting {
    SessionId session{};
    std::string label, tenant;
    WorkerWait wait;
    // Set if its worker died before it could read the client.
    std::optional<ipc::Serve> client;
    // If its reason is not empty, the next worker is told to end the session at once.
    StopOrder stop;
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
  // Closes descriptors that workers must not send; outlives the workers.
  DescriptorCloser closer_;
  std::list<std::unique_ptr<WorkerProcess>> workers_;
  // Oldest first; bounded by Admission::Limits.
  std::list<Waiting> waiting_;
  ShareTable& shares_;
  UnreadDescriptors& unread_;
  WorkerStarts& starts_;
  const WorkerStarts::Pool number_;
  // Null: nothing outlives the broker.
  EntryStore* const keeping_;
  // Failed starts in a row.
  unsigned failures_ = 0;
  bool retrying_ = false;
  bool matching_ = false, match_again_ = false;
  bool closed_ = false;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
