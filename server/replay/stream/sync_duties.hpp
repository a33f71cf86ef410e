// What only a synchronising call of the driver does, and a query does not.
#pragma once

#include <atomic>

namespace gpuwire::server {

// Whether a wait that a query found to be over still owes a synchronising call: it writes out what the device has
// printed (CUDA programming guide, "Formatted Output"), gives memory of pools back to the device
// (CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), and of a context waits for what no query tells of: work in streams that were
// destroyed before it was done, and in the NULL streams of green contexts. A session that needs none of it is spared
// the call, which takes longer than all else that a server does for a wait. What was noted stays so until the session
// ends.
//
// Any thread. The executor notes before it makes the driver call that brings the duty, so whoever waits for work that
// came of that call finds it noted: the wait was handed over after it (by the queue of waiters or the watcher's lock).
class SyncDuties {
 public:
  bool any() const { return noted_.load(std::memory_order_relaxed); }
  void note() { noted_.store(true, std::memory_order_relaxed); }

 private:
  std::atomic<bool> noted_{false};
};

}  // namespace gpuwire::server
