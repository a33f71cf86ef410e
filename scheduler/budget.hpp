// A budget of a device's time: it accrues with time and is spent by use. The cap of `realtime` and the floors of
// `batch` and `scavenger` are budgets.
#pragma once

#include <algorithm>

#include "scheduler/types.hpp"

namespace gpuwire::scheduler {

class Budget {
 public:
  void set(double rate, Duration full) {
    rate_ = rate;
    full_ = full;
    left_ = std::min(left_, full_);
  }
  void fill() { left_ = full_; }
  void accrue(Duration elapsed) { accrue(elapsed, rate_); }
  // Accrues at another rate, this time only.
  void accrue(Duration elapsed, double rate) {
    left_ = std::min(full_, left_ + Duration(static_cast<int64_t>(static_cast<double>(elapsed.count()) * rate)));
  }
  // The debt is bounded, too: time that a tenant gets in a lower class lowers its budget for a bounded time.
  void spend(Duration used) { left_ = std::max(-full_, left_ - used); }
  Duration left() const { return left_; }
  Duration full() const { return full_; }

 private:
  double rate_ = 0;
  Duration full_{};
  Duration left_{};
};

}  // namespace gpuwire::scheduler
