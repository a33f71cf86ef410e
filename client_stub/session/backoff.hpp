// The waits between attempts at a server that dropped a connection before it authenticated the caller, or had no room
// at that moment.
#pragma once

#include <chrono>
#include <optional>
#include <random>

namespace gpuwire::client {

// Each wait is about twice as long as the one before, with jitter, so that clients that were dropped together do not
// return together.
class Backoff {
 public:
  using Clock = std::chrono::steady_clock;

  // Waits. Returns false after the last attempt.
  bool wait();
  // For a client with a place in the queue: begins again with the shortest wait, and bounds the time instead of the
  // number of attempts.
  void patient_until(Clock::time_point until);
  bool patient() const { return until_.has_value(); }

 private:
  // How often.
  unsigned waited_ = 0;
  std::optional<Clock::time_point> until_;
  std::minstd_rand random_{std::random_device{}()};
};

inline constexpr unsigned kEnterAttemptsMax = 8;
inline constexpr std::chrono::milliseconds kBackoffFirst{50}, kBackoffMost{1600};
// How long a client that has waited in a server's queue tries to return to its place. A restarted server reserves the
// place for 30 s.
inline constexpr std::chrono::seconds kQueueReturn{300};

}  // namespace gpuwire::client
