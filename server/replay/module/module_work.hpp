// Loads and look-ups away from the executor: the driver compiles for as long as it takes, or waits for streams
// that stand at a function of the client, and calls of other threads of the client must not wait for that.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "protocol/threads/condition.hpp"

namespace gpuwire::server {

struct DriverTable;
class PooledEvent;
class Replay;

// The executor's current context, for a thread that works in its place; it is not destroyed meanwhile.
class ContextElsewhere {
 public:
  // Executor.
  explicit ContextElsewhere(Replay& replay);
  // Any thread.
  void enter() const;

 private:
  const DriverTable& driver_;
  CUcontext native_ = nullptr;
  std::shared_ptr<PooledEvent> lease_;  // null: no context of the session is current
};

// Tasks that are with the driver at a time; later ones wait for these, in the order in which they came.
inline constexpr size_t kModuleTasksMax = 4;

// One piece of work. Each of its functions runs once, in this order.
struct ModuleTask {
  std::function<void()> drive;   // a waiter's thread: makes the driver calls, touches nothing of the executor's
  std::function<void()> note;    // executor: before each frame of a client that has received the answer
  std::function<void()> answer;  // a waiter's thread: sends the reply; may be empty
};

// Tasks for one handle (a module or a library) run in the order in which they came, those for others beside them.
// A handle for an object that a task makes is pending in the handle table until its note() has run: a frame that names
// it waits there.
class ModuleWork {
 public:
  explicit ModuleWork(Replay& replay);

  // --- executor
  void run(uint64_t handle, ModuleTask task);
  // Is a task for the handle under way, or has one not been noted?
  bool busy(uint64_t handle);
  // Waits until none is.
  void await(uint64_t handle);
  // Before each frame: records finished tasks.
  void settle() {
    if (done_.load(std::memory_order_acquire)) [[unlikely]]
      run_notes();
  }
  // False: a task is still under way after `patience`.
  bool finish(std::chrono::milliseconds patience);

 private:
  struct Lane {
    std::deque<ModuleTask> tasks;  // that have not begun
    size_t open = 0;               // that have not been noted, these included
    bool runs = false;             // a waiter has it
  };
  struct Noted {
    uint64_t handle;
    std::function<void()> note;
  };
  void run_notes();
  void await_note();
  void serve(uint64_t handle);
  bool serve_one(uint64_t handle);

  Replay& replay_;
  std::mutex mutex_;   // a leaf; not held while a task or its note runs
  Condition changed_;  // notes_ has grown
  std::unordered_map<uint64_t, Lane> lanes_;
  std::deque<uint64_t> waiting_;  // lanes with tasks for which no waiter may be had yet
  size_t running_ = 0;            // lanes that waiters have
  std::vector<Noted> notes_;
  // Set with notes_, before the answer is sent; read by the executor before each frame. Release and acquire: a frame
  // that was sent because of an answer comes behind it.
  std::atomic<bool> done_{false};
};

}  // namespace gpuwire::server
