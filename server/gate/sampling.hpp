// Estimates the busy time of a device from polls at random times: each poll that finds it busy counts for the time
// since the previous poll.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "server/gate/limits.hpp"
#include "server/gate/page/session_page.hpp"

namespace gpuwire::server {

// The pauses are random, so that no rhythm of the work coincides with that of the polls. The first poll of a series
// comes at a random time after the event that began it, which is often the very work that is sampled. Then the sum is
// right on average, for much work and for little. Not thread-safe.
class Sampling {
 public:
  // Starts or resumes the sampling. Returns the time until the first poll.
  std::chrono::nanoseconds begin() {
    looked_ = PageTime{};
    return random_up_to(kSample);
  }
  std::chrono::nanoseconds pause() { return kSample / 2 + random_up_to(kSample); }
  // Called for a poll at `now`. Returns the time that the poll counts for.
  std::chrono::nanoseconds stands_for(PageTime now) {
    auto since = looked_ == PageTime{} ? kSample : now - looked_;
    looked_ = now;
    return since;
  }

 private:
  // Multiplicative congruential, with the constants of P. L'Ecuyer (1999), "Tables of linear congruential generators";
  // its upper bits are even enough here.
  std::chrono::nanoseconds random_up_to(std::chrono::nanoseconds most) {
    state_ = state_ * 1181783497276652981ull + 1;
    return std::chrono::nanoseconds(int64_t(double(state_ >> 11) / double(1ull << 53) * double(most.count())));
  }

  PageTime looked_{};
  uint64_t state_ = 0x9e3779b97f4a7c15ull;
};

}  // namespace gpuwire::server
