// The policy's own time: never goes back, and a leap of the caller's clock counts as nothing.
#pragma once

#include <optional>

#include "scheduler/types.hpp"

namespace gpuwire::scheduler {

class SteadyTime {
 public:
  // The caller's clock says `now`; `due`: when the caller was last asked to call again, in this object's time. Returns
  // this object's time.
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
  // A caller that comes later than this has not been running, or its clock has jumped: nobody is charged for more.
  static constexpr Duration kLateMax = std::chrono::milliseconds(100);

  Time offset_{};
  Time last_{};
  bool begun_ = false;
};

}  // namespace gpuwire::scheduler
