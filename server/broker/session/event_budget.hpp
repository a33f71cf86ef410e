// EventBudget bounds the rate at which observers are notified of events that a session's client or worker can cause at
// will.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "server/broker/limits.hpp"

namespace gpuwire::server {

// For one kind of event of one session: kSessionEventsAtOnce events, and then one every kSessionEventRefillMs. It
// counts the others.
class EventBudget {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Returns false if observers must not be notified.
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
  // The refill starts with the first event: `refilled_` is not set before.
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
