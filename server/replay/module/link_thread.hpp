// The one thread on which a session's linker runs.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "protocol/threads/condition.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::server {

// A program whose one thread makes and destroys links while other threads fill and complete them is ended by NVIDIA's
// driver (580.159.04 on an H200, natively: SIGABRT or SIGSEGV within 60 links, with and without logs and times; none
// when one thread does it all). Linking takes as long as compiling, so it has a thread of its own instead of the
// executor.
//
// The thread begins with the first task and ends with this object, which waits for it. Precondition: its tasks do not
// throw. All functions are called by the executor.
class LinkThread {
 public:
  LinkThread() = default;
  LinkThread(const LinkThread&) = delete;
  LinkThread& operator=(const LinkThread&) = delete;
  ~LinkThread();

  // Queues the task and returns at once.
  void run(std::function<void()> task);
  // Queues the task and returns after it has run.
  void run_and_wait(std::function<void()> task);
  // Waits until no task is left. Returns false if a task is left after `patience`.
  bool finish(std::chrono::milliseconds patience);

 private:
  void serve();

  // A leaf; not held while a task runs.
  Mutex mutex_;
  Condition changed_;
  std::deque<std::function<void()>> tasks_ GUARDED_BY(mutex_);
  // The number of tasks that have not ended.
  size_t open_ GUARDED_BY(mutex_) = 0;
  bool ending_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace gpuwire::server
