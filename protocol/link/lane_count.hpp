// The number of lanes for the next part, by the measurements of the last ones.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "protocol/wire/lanes.hpp"

namespace gpuwire::link {

// One lane more is tried while that pays, and one less now and then where it costs nothing: a lane takes a core's time
// at both ends. Plain data, no clock of its own.
class LaneCount {
 public:
  // Parts from which a rate is taken, and how much better a lane more has to be.
  static constexpr uint64_t kBytesPerTrial = 64u << 20;
  static constexpr double kGain = 1.05;
  // After this many trials without a change the best number is verified again.
  static constexpr unsigned kTrialsUntilPoll = 64;

  explicit LaneCount(size_t most) : most_(most), now_(most) {}

  size_t now() const { return now_; }
  void sent(uint64_t bytes, std::chrono::nanoseconds took);

 private:
  void settle(size_t lanes);

  const size_t most_;
  size_t now_;
  std::array<double, wire::kLanesMax + 1> rates_{};  // bytes in a nanosecond, by lanes; 0: not known
  uint64_t bytes_ = 0;
  std::chrono::nanoseconds took_{0};
  unsigned settled_ = 0;  // trials since the best was found
  bool searching_ = true;
};

}  // namespace gpuwire::link
