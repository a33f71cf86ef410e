// Quiescence is the rest of a worker while its session is suspended: the executor stops between two frames, and calls
// the driver again when the broker says so.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <string>

#include "protocol/threads/mutex.hpp"

namespace gpuwire::server {

// The watchdog's thread passes on the broker's orders, and the executor follows them at its next boundary between two
// frames. The executor goes on to read frames while it rests, and stops before the first one that needs the driver.
class Quiescence {
 public:
  // Called with the lock held; none may block.
  struct Hooks {
    std::function<void()> wake;                     // ends the executor's wait for bytes
    std::function<void(const std::string&)> quiet;  // tells the broker; not empty: why the executor does not rest
    std::function<void()> return_wanted;            // tells the broker: a frame needs the driver
  };
  explicit Quiescence(Hooks hooks) : hooks_(std::move(hooks)) {}

  // --- the watchdog's thread ---------------------------------------------------------------------------------------
  void request();
  // The driver may be called again.
  void go_on();
  // A new broker has not received the last reports.
  void repeat();

  // --- any thread --------------------------------------------------------------------------------------------------
  // The session ends: await_return() returns at once.
  void interrupt();

  // --- the executor ------------------------------------------------------------------------------------------------
  // Set while follow() has something to do. Relaxed: the wake-up follows it, and follow() takes the lock.
  const std::atomic<bool>& attention() const { return attention_; }
  // Between two frames. `why_not`: rests, or returns why it cannot; `go_on`: undoes its effects.
  void follow(const std::function<std::string()>& why_not, const std::function<void()>& go_on);
  bool quiet() const { return quiet_.load(std::memory_order_relaxed); }
  // A frame needs the driver: waits until the broker says that it may be called. The caller calls follow() next.
  void await_return();

 private:
  const Hooks hooks_;
  std::atomic<bool> attention_{false};
  std::atomic<bool> quiet_{
      false};  // written by the executor under mutex_; relaxed, because only the executor acts by it
  Mutex mutex_;
  std::condition_variable changed_;
  bool requested_ GUARDED_BY(mutex_) = false;
  bool released_ GUARDED_BY(mutex_) = false;  // told to go on while it rested
  bool wanted_ GUARDED_BY(mutex_) = false;    // the broker was told that a frame needs the driver
  bool interrupted_ GUARDED_BY(mutex_) = false;
};

}  // namespace gpuwire::server
