// The thread of a session: it sends posted calls that no caller has flushed, and receives while no caller does.
#pragma once

#include <pthread.h>

#include <atomic>

#include "protocol/threads/condition.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

class ConnectedSession;

class SessionThread {
 public:
  explicit SessionThread(ConnectedSession& session) : session_(session) {}

  // Returns false if the system cannot create the thread; the callers then send themselves.
  bool start() noexcept;
  // Requests the end and waits at most `wait_ms` (below 0: without a limit). Returns true if the thread has ended,
  // never ran, or is the caller.
  bool stop(int wait_ms) noexcept;

 private:
  static void* enter(void* self);
  void run();

  ConnectedSession& session_;
  pthread_t thread_{};
  // Written by start() and stop(). Only one commit() is asked to call start(); stop() runs when no call is in flight.
  std::atomic<bool> started_{false};
  // Partner: run()'s loop; the wake-up that follows the store orders it well enough, since the loop reads it again at
  // every turn.
  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  Condition changed_;
  // The thread touches nothing of the session any more.
  bool finished_ GUARDED_BY(mutex_) = false;
};

}  // namespace gpuwire::client
