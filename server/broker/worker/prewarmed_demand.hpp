// PrewarmedDemand computes the number of prewarmed workers that a pool should have ready: as many as sessions come
// while a worker starts.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

#include "server/broker/limits.hpp"

namespace gpuwire::server {

// It is pure and knows no clock. Each session takes a prewarmed worker, whose replacement is ready one start later. So
// a session finds a ready worker if there are as many as sessions came in that time. The demand counts the sessions of
// the last kPrewarmedWindowStarts starts: programs that follow each other and have to wait come no faster than workers
// start, so a window of one start would undercount them. A reached number is held for kPrewarmedHoldStarts starts,
// because ending a worker that is wanted again costs a start, while keeping one costs memory.
class PrewarmedDemand {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;
  struct Limits {
    // 0: none are prewarmed.
    unsigned least = 1;
    // At least `least` applies.
    unsigned most = 1;
  };

  PrewarmedDemand() : PrewarmedDemand(Limits{}) {}
  explicit PrewarmedDemand(Limits limits) { set_limits(limits); }
  void set_limits(Limits limits);

  // A session needs a worker of the pool. Times must not decrease; an earlier time counts as the last one.
  void came(Time now);
  // A worker of the pool has become ready, this long after its start began.
  void started(Duration took);

  // Returns a number from limits.least to limits.most.
  unsigned wanted(Time now) const;
  // Returns when wanted() falls next, if no session comes; nothing: it does not fall.
  std::optional<Time> next_change(Time now) const;
  // Returns the measured time of a start: a mean in which the latest starts weigh most.
  Duration start_time() const { return start_; }

 private:
  Duration hold() const;

  Limits limits_;
  Duration start_{std::chrono::milliseconds(kPrewarmedStartMinMs)};
  bool measured_ = false;
  // The last `most` sessions.
  std::deque<Time> came_;
  // [n]: the last time at which n + 1 sessions had come within the window.
  std::vector<std::optional<Time>> reached_;
};

}  // namespace gpuwire::server
