// Decides whether the server waits before it answers a query of unfinished work.
//
// A program that polls for short work asks right behind its launch. "Not ready", answered at once, costs it a second
// answer: the notice that the work is done. After a short wait the first answer already reports the end. For long work
// the wait is in vain, and is given up after two such queries until a query would have been worth it again. A watch is
// such a query, too: a watch right behind its record has no query before it, and the watcher's thread would have to be
// woken for it.
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

  // Executor: how long to wait for the answer of the query that is asked now, by a replay that may poll for
  // `poll_time`.
  Duration allowed(Duration poll_time) const {
    return vain_.load(std::memory_order_relaxed) < kVainMax ? std::min(limit_, poll_time) : Duration{};
  }
  // Executor: a query has been waited for; was it done in time?
  void waited(bool done) {
    if (done) return vain_.store(0, std::memory_order_relaxed);
    int vain = vain_.load(std::memory_order_relaxed);
    // A query that would have been worth it in between, on the watcher's thread, may be forgotten: the next one shows
    // it.
    if (vain < kVainMax) vain_.store(vain + 1, std::memory_order_relaxed);
  }
  // Any thread: work that was answered with "not ready" is done, this long after the query.
  void completed(Clock::duration after) {
    if (after <= limit_) vain_.store(0, std::memory_order_relaxed);
  }
  // Tests, before the first query.
  void set_limit(Duration limit) { limit_ = limit; }

 private:
  Duration limit_;
  // Alone; nothing is published by it.
  std::atomic<int> vain_{0};  // queries waited for in vain since one was worth it
};

}  // namespace gpuwire::server
