// The duties that only a synchronising call of the driver fulfils, and a query does not.
#pragma once

#include <atomic>

namespace gpuwire::server {

// Whether a wait that a query found to be over still needs a synchronising call. Such a call writes out the device's
// output (CUDA programming guide, "Formatted Output"), returns memory of pools to the device
// (CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), and in a context waits for work that no query covers: work in streams that were
// destroyed before it was done, and in the NULL streams of green contexts. A session without these duties skips the
// call, which takes longer than all other steps of a wait. A noted duty stays until the session ends.
//
// Any thread. The executor notes a duty before it makes the driver call that causes it, so a thread that waits for work
// of that call finds the duty noted: the wait was handed over afterwards (by the queue of waiters or the watcher's
// lock).
class SyncDuties {
 public:
  bool any() const { return noted_.load(std::memory_order_relaxed); }
  void note() { noted_.store(true, std::memory_order_relaxed); }

 private:
  std::atomic<bool> noted_{false};
};

}  // namespace gpuwire::server
