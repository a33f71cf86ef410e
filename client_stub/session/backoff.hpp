// The waits between attempts at a server that dropped a connection before it authenticated the caller, or that had no
// room at that moment.
#pragma once

#include <chrono>
#include <optional>
#include <random>

namespace gpuwire::client {

// Each wait is about twice as long as the one before; by chance a little longer or shorter, so that many clients that
// were dropped together do not come back together.
class Backoff {
 public:
  using Clock = std::chrono::steady_clock;

  // Waits. False: there were attempts enough.
  bool wait();
  // For a client that has a place to return to: begins again with the shortest wait, and bounds the time in place of
  // the number of attempts.
  void patient_until(Clock::time_point until);
  bool patient() const { return until_.has_value(); }

 private:
  unsigned waited_ = 0;  // how often
  std::optional<Clock::time_point> until_;
  std::minstd_rand random_{std::random_device{}()};
};

inline constexpr unsigned kEnterAttemptsMax = 8;
inline constexpr std::chrono::milliseconds kBackoffFirst{50}, kBackoffMost{1600};
// How long a client that has waited in a server's queue tries to get back to its place. A server that is started again
// keeps it for 30 s from when it is there.
inline constexpr std::chrono::seconds kQueueReturn{300};

}  // namespace gpuwire::client
