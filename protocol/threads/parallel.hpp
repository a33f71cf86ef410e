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

namespace gpuwire {

// One thread at a time calls it, and works, too.
class Parallel {
 public:
  // `helpers`: threads beside the caller's; they are started by the first run() that has work for them. Of signals they
  // take those alone that a fault raises, for what they read may be memory whose faults the program serves. With fewer,
  // or none, the work takes longer. `look`: for how long they look for more work, and the caller for its end, before
  // they sleep.
  explicit Parallel(unsigned helpers, std::chrono::microseconds look) : helpers_(helpers), look_(look) {}
  ~Parallel();
  Parallel(const Parallel&) = delete;
  Parallel& operator=(const Parallel&) = delete;

  // Calls work(0) to work(count - 1), each once, in any order; returns when all have returned. `work` does not throw.
  void run(size_t count, const std::function<void(size_t)>& work) noexcept;

 private:
  void help() noexcept;
  void take_pieces(std::unique_lock<std::mutex>& lock);
  template <class Done>
  void look(std::unique_lock<std::mutex>& lock, Done&& done) const;

  const unsigned helpers_;
  const std::chrono::microseconds look_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;  // guards what follows; not held while a piece is worked on
  std::condition_variable changed_, done_;
  const std::function<void(size_t)>* work_ = nullptr;
  size_t next_ = 0, count_ = 0;
  bool ending_ = false;
  // Pieces that nobody has taken; 1 when it ends. Pieces that are not done. Written under the lock; read without it
  // they are hints whether the lock is worth it: relaxed.
  std::atomic<size_t> left_{0}, unfinished_{0};
};

// How many helpers pay on this machine: with half of the cores that this process may run on, and no more than
// `most`.
unsigned helpers_here(unsigned most) noexcept;

}  // namespace gpuwire
