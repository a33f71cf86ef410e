// How many spare workers a pool should have ready: as many as the sessions that come while workers start.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <vector>

#include "server/broker/limits.hpp"

namespace gpuwire::server {

// Pure: it knows no clock. Each session takes a spare, and the one that takes its place is ready a start later. So who
// comes finds one where there are as many as sessions came in that time. What came within kSpareWindowStarts starts is
// asked for: programs that follow each other and had to wait come no faster than workers start, and would look like
// fewer than they are. A number that was reached is held for kSpareHoldStarts starts, because a spare that is ended and
// wanted again costs a start, and one that is kept costs memory for as long as it is.
class SpareDemand {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;
  struct Limits {
    unsigned least = 1;  // 0: none are kept, whoever comes
    unsigned most = 1;   // where it is less than `least`, that counts
  };

  SpareDemand() : SpareDemand(Limits{}) {}
  explicit SpareDemand(Limits limits) { set_limits(limits); }
  void set_limits(Limits limits);

  // A session wants a worker of the pool. Times of one object must not go back; one that does counts as the last.
  void came(Time now);
  // A worker of the pool has become ready, so long after its start began.
  void started(Duration took);

  // From limits.least to limits.most.
  unsigned wanted(Time now) const;
  // When wanted() falls next, if nobody comes. Nothing: it does not.
  std::optional<Time> next_change(Time now) const;
  // What a start takes, as far as is known: a mean in which the last ones count most.
  Duration start_time() const { return start_; }

 private:
  Duration hold() const;

  Limits limits_;
  Duration start_{std::chrono::milliseconds(kSpareStartMinMs)};
  bool measured_ = false;
  std::deque<Time> came_;                     // the last `most` sessions
  std::vector<std::optional<Time>> reached_;  // [n]: when n + 1 sessions last had come within the window
};

}  // namespace gpuwire::server
