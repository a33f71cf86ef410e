// Threads for driver calls that wait, so that the executor does not.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "protocol/threads/condition.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::server {

// Grows on demand up to kBlockedWaitersMax threads and keeps them until the end.
class WaiterPool {
 public:
  using Task = std::function<void()>;

  // `enter` runs first on each thread. Neither it nor a task may throw.
  explicit WaiterPool(Task enter) : enter_(std::move(enter)) {}
  ~WaiterPool() { finish(); }
  WaiterPool(const WaiterPool&) = delete;
  WaiterPool& operator=(const WaiterPool&) = delete;

  // Passes the task to a free or new thread at once, because the caller's next work may be what ends other waits.
  // Returns false if kBlockedWaitersMax tasks are in flight. Any thread.
  bool run(Task task);
  // Returns whether kWaitersMax tasks are in flight: a wait should then use the watcher if it can.
  bool crowded();
  // Returns whether no task is in flight.
  bool idle();
  // Waits for all tasks and ends the threads. No task may be added meanwhile or afterwards, so the
  // threads are joined without the lock.
  void finish() WITHOUT_LOCK_CHECK;

 private:
  void serve();

  const Task enter_;
  Mutex mutex_;
  Condition work_;
  // At most one task for each idle thread.
  std::deque<Task> tasks_ GUARDED_BY(mutex_);
  // The threads without a running task, including those that a queued task will use.
  size_t idle_ GUARDED_BY(mutex_) = 0;
  bool ending_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ GUARDED_BY(mutex_);
};

}  // namespace gpuwire::server
