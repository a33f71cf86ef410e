// Decides whether the server waits before it answers a query of unfinished work.
//
// A program that polls for short work sends its first query directly after the launch. An immediate "not ready" makes a
// second message necessary: the notice that the work is done. After a short wait the first answer can already report
// the end. For long work the wait is in vain, and QuerySpin stops waiting after two such queries until a wait would
// have succeeded again. A watch counts as a query, too: a watch directly after its record has no query before it, and
// would otherwise wake the watcher's thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>

namespace gpuwire::server {

class QuerySpin {
 public:
  using Duration = std::chrono::microseconds;
  using Clock = std::chrono::steady_clock;

  // Twice the time of an empty kernel from its launch to its end.
  static constexpr Duration kLimit{30};
  static constexpr int kVainMax = 2;

  explicit QuerySpin(Duration limit = kLimit) : limit_(limit) {}

  // Executor: returns how long to wait before the present query is answered; `poll_time`: the replay's bound.
  Duration allowed(Duration poll_time) const {
    return vain_.load(std::memory_order_relaxed) < kVainMax ? std::min(limit_, poll_time) : Duration{};
  }
  // Executor: records the result of a wait; `done`: the work ended in time.
  void waited(bool done) {
    if (done) return vain_.store(0, std::memory_order_relaxed);
    int vain = vain_.load(std::memory_order_relaxed);
    // This store may overwrite a concurrent reset by the watcher's thread; the next completion resets the count again.
    if (vain < kVainMax) vain_.store(vain + 1, std::memory_order_relaxed);
  }
  // Any thread: records that work whose query was answered with "not ready" was done this long after the query.
  void completed(Clock::duration after) {
    if (after <= limit_) vain_.store(0, std::memory_order_relaxed);
  }
  // For tests, before the first query.
  void set_limit(Duration limit) { limit_ = limit; }

 private:
  Duration limit_;
  // Relaxed: nothing is published through it.
  // Waits in vain since the last that succeeded.
  std::atomic<int> vain_{0};
};

}  // namespace gpuwire::server
