#include "protocol/link/lane_count.hpp"

#include <algorithm>

namespace gpuwire::link {

void LaneCount::sent(uint64_t bytes, std::chrono::nanoseconds took) {
  bytes_ += bytes;
  took_ += took;
  if (bytes_ < kBytesPerTrial) return;
  rates_[now_] = double(bytes_) / double(std::max<int64_t>(took_.count(), 1));
  bytes_ = 0;
  took_ = {};
  if (!searching_) {
    if (++settled_ < kTrialsUntilPoll) return;
    searching_ = true;
    rates_ = {};
    now_ = most_;
    return;
  }
  // The trials start with all lanes and go down while one lane less is nearly as fast as the best number that was
  // measured.
  bool good = rates_[now_] * kGain >= *std::max_element(rates_.begin(), rates_.end());
  if (!good) return settle(now_ + 1);
  if (now_ == 1) return settle(1);
  --now_;
}

void LaneCount::settle(size_t lanes) {
  now_ = lanes;
  searching_ = false;
  settled_ = 0;
}

}  // namespace gpuwire::link
