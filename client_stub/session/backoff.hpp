// Another attempt at a server that has dropped a connection before it knew who calls, or had no room for it at that moment.
#pragma once

#include <chrono>
#include <random>

namespace gpuwire::client {

// Each wait is about twice as long as the one before; by chance a little longer or shorter, so that many clients that were dropped together do not come back together.
class Backoff {
 public:
  // Waits. False: there were attempts enough.
  bool wait();

 private:
  unsigned waited_ = 0;  // how often
  std::minstd_rand random_{std::random_device{}()};
};

inline constexpr unsigned kEnterAttemptsMax = 8;
inline constexpr std::chrono::milliseconds kBackoffFirst{50}, kBackoffMost{1600};

}  // namespace gpuwire::client
