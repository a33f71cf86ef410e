// Quiescence: the rest of a worker while its session is suspended. The executor stops between two frames, and calls the
// driver again when the broker permits it.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>

#include "protocol/threads/condition.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::server {

// The watchdog's thread passes the broker's orders on, and the executor follows them between two frames. While it
// rests, the executor reads frames, and stops before the first frame that needs the driver.
class Quiescence {
 public:
  // The session's part. All functions are called with the lock held, so none may block.
  struct Hooks {
    // Ends the executor's wait for bytes.
    std::function<void()> wake;
    // Notifies the broker that the executor rests. A non-empty text is the reason why it does not.
    std::function<void(const std::string&)> quiet;
    // Notifies the broker that a frame needs the driver.
    std::function<void()> return_wanted;
  };
  // The session's steps, which the executor carries out in follow().
  struct Steps {
    // Begins the rest, or returns why it cannot. Called with the lock held: it may not block.
    std::function<std::string()> rest;
    // Ends the rest: undoes the effects of `rest`, and brings evictable blocks back. May block.
    std::function<void()> go_on;
    // Moves the evictable blocks to the host, or back, and notifies the broker. May block.
    std::function<void(bool back)> move_blocks = [](bool) {};
  };
  explicit Quiescence(Hooks hooks) : hooks_(std::move(hooks)) {}

  // --- the watchdog's thread ---------------------------------------------------------------------------------------
  // Requests the rest of the executor.
  void request();
  // Ends the rest: the driver may be called again.
  void go_on();
  // Moves the evictable blocks of the resting session.
  void move_blocks(bool back);
  // Sends the last reports again, to a new broker.
  void repeat();

  // --- any thread --------------------------------------------------------------------------------------------------
  // Makes await_return() return at once, because the session ends.
  void interrupt();

  // --- the executor ------------------------------------------------------------------------------------------------
  // Returns a word that is set while follow() has something to do. Relaxed: the wake-up follows the store, and follow()
  // takes the lock.
  const std::atomic<bool>& attention() const { return attention_; }
  // Follows the orders. Called between two frames. An order to go on withdraws an order to move that came before it.
  void follow(const Steps& steps);
  bool quiet() const { return quiet_.load(std::memory_order_relaxed); }
  // Waits for the next order, for a frame that needs the driver. The caller calls follow() next.
  void await_return();

 private:
  const Hooks hooks_;
  std::atomic<bool> attention_{false};
  // The executor writes it under mutex_. Relaxed, because only the executor acts by it.
  std::atomic<bool> quiet_{false};
  Mutex mutex_;
  Condition changed_;
  bool requested_ GUARDED_BY(mutex_) = false;
  // The broker has ended the rest.
  bool released_ GUARDED_BY(mutex_) = false;
  // The broker was notified that a frame needs the driver.
  bool wanted_ GUARDED_BY(mutex_) = false;
  bool interrupted_ GUARDED_BY(mutex_) = false;
  // The argument of move_blocks().
  std::optional<bool> move_back_ GUARDED_BY(mutex_);
};

}  // namespace gpuwire::server
