// Runs work that is cut into pieces on a few threads that live as long as their owner.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "protocol/threads/condition.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire {

// Thread: one at a time calls run(), and takes pieces, too.
class Parallel {
 public:
  // `helpers` is the number of threads beside the caller's; the first run() with work for them starts them. They block
  // all signals except those of faults, because they may access memory whose faults the program handles. If fewer
  // helpers can be started, the work takes longer. `poll` is the time for which helpers poll for more work, and the
  // caller for its end, before they sleep.
  explicit Parallel(unsigned helpers, std::chrono::microseconds poll) : helpers_(helpers), poll_(poll) {}
  ~Parallel();
  Parallel(const Parallel&) = delete;
  Parallel& operator=(const Parallel&) = delete;

  // Calls work(0) to work(count - 1), each once, in any order, and returns when all have returned. Precondition: `work`
  // does not throw.
  void run(size_t count, const std::function<void(size_t)>& work) noexcept;

 private:
  void help() noexcept;
  // Both release the lock meanwhile.
  void take_pieces() REQUIRES(mutex_);
  template <class Done>
  void poll(Done&& done) REQUIRES(mutex_);

  const unsigned helpers_;
  const std::chrono::microseconds poll_;
  std::vector<std::thread> threads_;
  // Not held during a piece of work.
  Mutex mutex_;
  Condition changed_, done_;
  const std::function<void(size_t)>* work_ GUARDED_BY(mutex_) = nullptr;
  size_t next_ GUARDED_BY(mutex_) = 0, count_ GUARDED_BY(mutex_) = 0;
  bool ending_ GUARDED_BY(mutex_) = false;
  // left_: pieces that no thread has taken; 1 in the destructor. unfinished_: pieces that are not done. Written under
  // the lock. Relaxed: a thread without the lock reads them only to decide whether to take it.
  std::atomic<size_t> left_{0}, unfinished_{0};
};

// Returns how many helpers are useful on this machine: half of the cores that this process may use, at most `most`.
unsigned helpers_here(unsigned most) noexcept;

}  // namespace gpuwire
