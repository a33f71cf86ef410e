// How many spare workers a pool should have ready: as many as the sessions that come while workers start.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

#include "server/broker/limits.hpp"

namespace gpuwire::server {

// Pure: it knows no clock. Each session takes a prewarmed worker, and its replacement is ready a start later. So a
// session finds one if there are as many as sessions came in that time. The demand counts the sessions of the last
// kPrewarmedWindowStarts starts: programs that follow each other and had to wait come no faster than workers start, and
// would look like fewer than they are. A reached number is held for kPrewarmedHoldStarts starts, because ending a
// worker that is wanted again costs a start, while keeping one costs memory.
class PrewarmedDemand {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;
  struct Limits {
    unsigned least = 1;  // 0: none are prewarmed
    unsigned most = 1;   // where it is less than `least`, that counts
  };

  PrewarmedDemand() : PrewarmedDemand(Limits{}) {}
  explicit PrewarmedDemand(Limits limits) { set_limits(limits); }
  void set_limits(Limits limits);

  // A session needs a worker of the pool. Times of one object must not go back; an earlier time counts as the last one.
  void came(Time now);
  // A worker of the pool has become ready, this long after its start began.
  void started(Duration took);

  // From limits.least to limits.most.
  unsigned wanted(Time now) const;
  // When wanted() falls next, if nobody comes. Nothing: it does not.
  std::optional<Time> next_change(Time now) const;
  // The known time of a start: a mean in which the last ones count most.
  Duration start_time() const { return start_; }

 private:
  Duration hold() const;

  Limits limits_;
  Duration start_{std::chrono::milliseconds(kPrewarmedStartMinMs)};
  bool measured_ = false;
  std::deque<Time> came_;                     // the last `most` sessions
  std::vector<std::optional<Time>> reached_;  // [n]: when n + 1 sessions last had come within the window
};

}  // namespace gpuwire::server
