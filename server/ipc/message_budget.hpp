// How much a worker process may say to the broker. A session's own worker is not believed: a client may have taken it
// over.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>

#include "server/ipc/limits.hpp"

namespace gpuwire::server {

// Counts messages. A worker that has used up what it may say pauses: it is not listened to for kWorkerPauseMs, and its
// own sends wait. One that waits for its answers has no more messages on the way then than it has threads; one that
// does not, again and again, floods.
class MessageBudget {
 public:
  using Time = std::chrono::steady_clock::time_point;
  explicit MessageBudget(Time now) : refilled_(now) {}

  enum class Verdict : uint8_t { go_on, pause, flood };
  // `heard` messages were read in one turn, of which there may be kWorkerMessagesPerTurn.
  Verdict turn(size_t heard, Time now) {
    refill(now);
    left_ -= double(heard);
    if (after_pause_) full_after_pause_ = heard >= kWorkerMessagesPerTurn ? full_after_pause_ + 1 : 0;
    after_pause_ = left_ < 0;
    if (full_after_pause_ >= kWorkerFullTurnsMax) return Verdict::flood;
    return after_pause_ ? Verdict::pause : Verdict::go_on;
  }

 private:
  void refill(Time now) {
    left_ = std::min(left_ + std::chrono::duration<double>(now - refilled_).count() * kWorkerMessagesPerSecond,
                     kWorkerMessagesAtOnce);
    refilled_ = now;
  }

  double left_ = kWorkerMessagesAtOnce;
  Time refilled_;
  bool after_pause_ = false;
  unsigned full_after_pause_ = 0;  // in a row
};

}  // namespace gpuwire::server
