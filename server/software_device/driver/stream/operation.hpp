// Work of streams as a graph: an operation starts when all its dependencies have finished. Streams, events, the legacy
// stream's implicit synchronisation and graphs are all dependencies between operations.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "protocol/threads/condition.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::software_device {

class OperationScheduler;

// One step of a stream, shared by all that may wait for it. A finished operation keeps no other object alive.
class Operation {
 public:
  using Clock = std::chrono::steady_clock;

  // Pairs with the release in OperationScheduler::finish: a thread that sees the operation done also sees its writes.
  bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  // Precondition: done().
  Clock::time_point finished_at() const noexcept { return finished_at_; }

 private:
  friend class OperationScheduler;
  enum class RunBy { pool, caller, nobody };

  std::function<void()> work_;
  RunBy run_by_ = RunBy::nobody;
  // Unfinished dependencies. Guarded by the scheduler's mutex, like dependents_.
  size_t unfinished_ = 0;
  std::vector<std::shared_ptr<Operation>> dependents_;
  Clock::time_point finished_at_{};
  std::atomic<bool> done_{false};
};

using OperationPtr = std::shared_ptr<Operation>;

// Runs operations on a pool of threads, which grows with the number of operations that are ready at once. Operations
// may block (a launch, a host function), so the pool may have more threads than the machine has cores. Operations must
// not throw.
class OperationScheduler {
 public:
  static constexpr size_t kThreadsMax = 128;

  // Runs `work` on the pool after all dependencies. Empty `work` makes a marker that finishes with its last dependency.
  OperationPtr submit(std::function<void()> work, std::span<const OperationPtr> dependencies);

  // The same in two steps, for work that the calling thread does itself. prepare() takes the place in the order;
  // run_here() waits for its turn, runs `work` and finishes the operation. run_here() must follow, or dependents wait
  // forever.
  OperationPtr prepare(std::span<const OperationPtr> dependencies);
  void run_here(const OperationPtr& operation, const std::function<void()>& work);

  void wait(const Operation& operation);
  // Returns false if the operation did not finish in time.
  bool wait_for(const Operation& operation, std::chrono::milliseconds timeout);

 private:
  OperationPtr insert(std::function<void()> work, Operation::RunBy run_by, std::span<const OperationPtr> dependencies);
  void make_ready(const OperationPtr& operation, std::vector<OperationPtr>& finished) REQUIRES(mutex_);
  void finish(const OperationPtr& operation);
  void finish_locked(std::vector<OperationPtr> finished) REQUIRES(mutex_);
  void grow_locked() REQUIRES(mutex_);
  void work_loop();

  Mutex mutex_;
  gpuwire::Condition ready_changed_;
  gpuwire::Condition something_finished_;
  std::deque<OperationPtr> ready_ GUARDED_BY(mutex_);
  size_t idle_threads_ GUARDED_BY(mutex_) = 0;
  // Never joined: the scheduler lives as long as the process.
  std::vector<std::thread> threads_ GUARDED_BY(mutex_);
};

}  // namespace gpuwire::software_device
