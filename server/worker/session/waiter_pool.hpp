// Threads for driver calls that wait, so that the executor does not.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

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

  // Hands over to a thread, at once: the caller may be the one that ends the wait of the others. False:
  // kBlockedWaitersMax tasks are in flight. Any thread.
  bool run(Task task);
  // kWaitersMax tasks are under way: a wait for which something else will do should take that.
  bool crowded();
  // Waits for all tasks and ends the threads; nothing may be handed over any more.
  void finish();

 private:
  void serve();

  const Task enter_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<Task> tasks_;  // at most one per idle thread
  size_t idle_ = 0;         // threads that are not in a task, those that a queued task is meant for included
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace gpuwire::server
