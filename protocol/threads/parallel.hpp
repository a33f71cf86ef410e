// Work that is cut into pieces, on a few threads that live as long as their owner.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "protocol/threads/mutex.hpp"

namespace gpuwire {

// One thread at a time calls it, and works, too.
class Parallel {
 public:
  // `helpers`: threads beside the caller's; the first run() with work for them starts them. They take only the signals
  // that a fault raises, for they may read memory whose faults the program handles. With fewer or no helpers the work
  // takes longer. `look`: the time for which helpers poll for more work, and the caller for its end, before they sleep.
  explicit Parallel(unsigned helpers, std::chrono::microseconds poll) : helpers_(helpers), poll_(poll) {}
  ~Parallel();
  Parallel(const Parallel&) = delete;
  Parallel& operator=(const Parallel&) = delete;

  // Calls work(0) to work(count - 1), each once, in any order; returns when all have returned. `work` does not throw.
  void run(size_t count, const std::function<void(size_t)>& work) noexcept;

 private:
  void help() noexcept;
  // Both give the lock up meanwhile.
  void take_pieces() REQUIRES(mutex_);
  template <class Done>
  void poll(Done&& done) REQUIRES(mutex_);

  const unsigned helpers_;
  const std::chrono::microseconds poll_;
  std::vector<std::thread> threads_;
  Mutex mutex_;  // not held while a piece is worked on
  std::condition_variable changed_, done_;
  const std::function<void(size_t)>* work_ GUARDED_BY(mutex_) = nullptr;
  size_t next_ GUARDED_BY(mutex_) = 0, count_ GUARDED_BY(mutex_) = 0;
  bool ending_ GUARDED_BY(mutex_) = false;
  // Pieces that nobody has taken; 1 when it ends. Pieces that are not done. Written under the lock; read without it
  // they are hints whether the lock is worth it: relaxed.
  std::atomic<size_t> left_{0}, unfinished_{0};
};

// How many helpers pay on this machine: with half of the cores that this process may run on, and no more than
// `most`.
unsigned helpers_here(unsigned most) noexcept;

}  // namespace gpuwire
