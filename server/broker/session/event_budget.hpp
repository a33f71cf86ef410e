// How often something that a session's client or worker can cause at will is told to who looks on.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "server/broker/limits.hpp"

namespace gpuwire::server {

// Of one kind of events of one session: kSessionEventsAtOnce of them, and then one every kSessionEventRefillMs. The
// others are counted.
class EventBudget {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // False: it is not to be told.
  bool take(Time now) {
    refill(now);
    if (left_ < 1) {
      ++unsent_;
      return false;
    }
    left_ -= 1;
    return true;
  }
  uint64_t untold() const { return unsent_; }

 private:
  // From the first on: `refilled_` means nothing before.
  void refill(Time now) {
    if (refilled_ != Time()) {
      const std::chrono::duration<double, std::milli> past = now - refilled_;
      left_ = std::min(left_ + past.count() / kSessionEventRefillMs, double(kSessionEventsAtOnce));
    }
    refilled_ = now;
  }

  double left_ = kSessionEventsAtOnce;
  Time refilled_;
  uint64_t unsent_ = 0;
};

}  // namespace gpuwire::server
