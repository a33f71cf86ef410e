// LaneCount chooses the number of lanes for the next part from the measured rates of the last parts.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "protocol/wire/lanes.hpp"

namespace gpuwire::link {

// LaneCount starts with all lanes and uses fewer while the rate stays nearly the same, because each lane uses a core at
// both ends. It repeats the search after kTrialsUntilPoll trials. LaneCount has no clock and no lock.
class LaneCount {
 public:
  // The bytes from which one rate is measured, and the factor by which another number of lanes has to be faster in
  // order to be preferred.
  static constexpr uint64_t kBytesPerTrial = 64u << 20;
  static constexpr double kGain = 1.05;
  // After this many trials without a change, the search starts again with all lanes.
  static constexpr unsigned kTrialsUntilPoll = 64;

  explicit LaneCount(size_t most) : most_(most), now_(most) {}

  size_t now() const { return now_; }
  void sent(uint64_t bytes, std::chrono::nanoseconds took);

 private:
  void settle(size_t lanes);

  const size_t most_;
  size_t now_;
  // Bytes per nanosecond, indexed by the number of lanes. 0: not measured.
  std::array<double, wire::kLanesMax + 1> rates_{};
  uint64_t bytes_ = 0;
  std::chrono::nanoseconds took_{0};
  // Trials since the best number was found.
  unsigned settled_ = 0;
  bool searching_ = true;
};

}  // namespace gpuwire::link
