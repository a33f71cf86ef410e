// The worker processes: started ahead, given one client each, watched until they have ended.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>

#include "protocol/wire/frame.hpp"
#include "server/broker/handoff.hpp"
#include "server/broker/share_table.hpp"
#include "server/broker/worker_process.hpp"

namespace gpuwire::server {

// Runs on the broker's one thread. Keeps `spares` workers ready beside those in use; a start that fails is repeated with growing delays,
// and after kStartAttemptsMax failures in a row only when the next client asks.
class WorkerPool {
 public:
  struct Events {
    std::function<void(const std::string& summary)> ready;     // a worker has become ready; its device_summary()
    std::function<void(const std::string& reason)> hopeless;   // kStartAttemptsMax starts in a row have failed
    // A client that no worker can take; its socket is in the handoff.
    std::function<void(Handoff client, wire::RefusalCode code, const std::string& reason)> refused;
    std::function<void()> session_over;                        // a session's process has ended
  };

  WorkerPool(boost::asio::io_context& io, WorkerCommand command, unsigned spares, Events events);

  // `first`: starts one worker even when no spare is wanted, because its ready message says what device there is.
  void start(bool first);
  // Takes over a client (HandoffKind::session). Every one ends in a worker or in Events::refused.
  void take(Handoff client);
  // Clients in workers and those waiting for one.
  size_t sessions() const { return serving_ + waiting_.size(); }

  // Starts no more, ends the spares, refuses who waits. Running sessions go on.
  void close(const std::string& reason);
  // Ends the running sessions; each is killed kWorkerExitMs later if it has not ended.
  void stop_sessions(const std::string& reason);

 private:
  struct Waiting {
    Handoff client;
    std::chrono::steady_clock::time_point until;
  };
  void fill();
  void start_one();
  void start_failed(const std::string& reason);
  void retry_later();
  void said(WorkerProcess& worker, Handoff message);
  void worker_ready(WorkerProcess& worker, const Handoff& message);
  void answer_share(WorkerProcess& worker, Handoff question);
  void match();
  void give(WorkerProcess& worker, Handoff client);
  void refuse_late();
  void refuse_all(wire::RefusalCode code, const std::string& reason);
  void await_children();
  void reap();
  void ended(WorkerProcess& worker, const std::string& how);
  size_t count(WorkerProcess::State state) const;

  boost::asio::io_context& io_;
  const WorkerCommand command_;
  const unsigned spares_;
  const Events events_;
  boost::asio::signal_set children_;
  boost::asio::steady_timer retry_timer_;
  boost::asio::steady_timer late_timer_;
  std::list<std::unique_ptr<WorkerProcess>> workers_;
  std::deque<Waiting> waiting_;  // oldest first; bounded by the broker's limit of sessions
  ShareTable shares_;
  size_t serving_ = 0;
  unsigned failures_ = 0;  // in a row
  bool retrying_ = false;
  bool closed_ = false;
};

}  // namespace gpuwire::server
