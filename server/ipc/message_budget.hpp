// Limits the messages of an untrusted end: a session's worker may be compromised by its client.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>

#include "server/ipc/limits.hpp"

namespace gpuwire::server::ipc {

// Counts messages. If a process has used up its budget, the reader does not read its messages for kBudgetPauseMs, so
// that its sends block. A process that waits for its answers then has at most one message in flight for each thread; a
// process that repeatedly has more is flooding.
class MessageBudget {
 public:
  using Time = std::chrono::steady_clock::time_point;
  explicit MessageBudget(Time now) : refilled_(now) {}

  enum class Verdict : uint8_t { go_on, pause, flood };
  // `heard` messages were read in one turn, at most kMessagesPerTurn.
  Verdict turn(size_t received, Time now) {
    refill(now);
    left_ -= double(received);
    if (after_pause_) full_after_pause_ = received >= kMessagesPerTurn ? full_after_pause_ + 1 : 0;
    after_pause_ = left_ < 0;
    if (full_after_pause_ >= kFullTurnsMax) return Verdict::flood;
    return after_pause_ ? Verdict::pause : Verdict::go_on;
  }

 private:
  void refill(Time now) {
    const double seconds = std::chrono::duration<double>(now - refilled_).count();
    left_ = std::min(left_ + seconds * kBudgetPerSecond, kBudgetAtOnce);
    refilled_ = now;
  }

  double left_ = kBudgetAtOnce;
  Time refilled_;
  bool after_pause_ = false;
  // In a row.
  unsigned full_after_pause_ = 0;
};

}  // namespace gpuwire::server::ipc
