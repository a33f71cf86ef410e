// Loads and look-ups on threads other than the executor: the driver may compile for long, or wait for streams that wait
// at a function of the client, and calls of the client's other threads must not wait meanwhile.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "protocol/threads/condition.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::server {

struct DriverTable;
class PooledEvent;
class Replay;

// The executor's current context, for use on another thread. The context is not destroyed while this object exists.
class ContextElsewhere {
 public:
  // Executor.
  explicit ContextElsewhere(Replay& replay);
  // Any thread.
  void enter() const;

 private:
  const DriverTable& driver_;
  CUcontext native_ = nullptr;
  // Null if no context of the session is current.
  std::shared_ptr<PooledEvent> lease_;
};

// The bound of tasks that are in the driver at the same time; later tasks wait in order.
inline constexpr size_t kModuleTasksMax = 4;

// A load or look-up. Each of its functions runs once, in this order.
struct ModuleTask {
  // Makes the driver calls, on a waiter's thread, and uses no state of the executor.
  std::function<void()> drive;
  // Runs on the executor, before each frame of a client that has received the answer.
  std::function<void()> note;
  // Sends the reply, on a waiter's thread; may be empty.
  std::function<void()> answer;
};

// Tasks for one handle (a module or a library) run in order; tasks for different handles run concurrently. The handle
// of an object that a task makes is pending in the handle table until the task's note() has run: a frame that names the
// handle waits for it.
class ModuleWork {
 public:
  explicit ModuleWork(Replay& replay);

  // --- executor
  void run(uint64_t handle, ModuleTask task);
  // Returns whether a task for the handle is unfinished, or its note() has not run.
  bool busy(uint64_t handle);
  // Waits until busy() is false.
  void await(uint64_t handle);
  // Runs note() of finished tasks. Called before each frame.
  void settle() {
    if (done_.load(std::memory_order_acquire)) [[unlikely]]
      run_notes();
  }
  // Waits until no task is unfinished. Returns false if one is after `patience`.
  bool finish(std::chrono::milliseconds patience);

 private:
  struct Lane {
    // The tasks that have not begun.
    std::deque<ModuleTask> tasks;
    // The tasks whose note() has not run, including those that have not begun.
    size_t open = 0;
    // A waiter serves this lane.
    bool runs = false;
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
  // A leaf; not held while a task or its note runs.
  Mutex mutex_;
  // Notified when notes_ has grown.
  Condition changed_;
  std::unordered_map<uint64_t, Lane> lanes_ GUARDED_BY(mutex_);
  // The lanes with tasks that wait for one of the kModuleTasksMax waiters.
  std::deque<uint64_t> waiting_ GUARDED_BY(mutex_);
  // The number of lanes that waiters serve.
  size_t running_ GUARDED_BY(mutex_) = 0;
  std::vector<Noted> notes_ GUARDED_BY(mutex_);
  // Set with notes_, before the answer is sent; the executor reads it before each frame. Release and acquire: a frame
  // that the client sent because of an answer arrives after this store.
  std::atomic<bool> done_{false};
};

}  // namespace gpuwire::server
