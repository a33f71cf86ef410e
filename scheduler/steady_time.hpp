// SteadyTime is the policy's clock: it never goes back, and ignores leaps of the caller's clock.
#pragma once

#include <optional>

#include "scheduler/types.hpp"

namespace gpuwire::scheduler {

class SteadyTime {
 public:
  // `now`: the caller's clock. `due`: the time of the call that was last requested of the caller, in this object's
  // time. Returns this object's time.
  Time advance(Time now, std::optional<Time> due) {
    Time time = now + offset_;
    if (!begun_) {
      begun_ = true;
      last_ = time;
    }
    const bool late = due && time > std::max(*due, last_) + kLateMax;
    if (time < last_ || late) {
      const Time meant = late ? std::max(*due, last_) + kLateMax : last_;
      offset_ += meant - time;
      time = meant;
    }
    last_ = time;
    return time;
  }
  Time inside(Time caller) const { return caller + offset_; }
  Time outside(Time own) const { return own - offset_; }
  Time last() const { return last_; }

 private:
  // A caller that is later than this was not running, or its clock has jumped: no session is charged for more.
  static constexpr Duration kLateMax = std::chrono::milliseconds(100);

  Time offset_{};
  Time last_{};
  bool begun_ = false;
};

}  // namespace gpuwire::scheduler
