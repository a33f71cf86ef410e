// RunTimes has the latest run times of programs, and estimates a waiting program's start from them. Pure logic.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <vector>

namespace gpuwire::scheduler {

inline constexpr size_t kRunTimesKept = 64;   // the latest
inline constexpr size_t kRunTimesNeeded = 3;  // fewer give no estimate

class RunTimes {
 public:
  // A program has ended after so many seconds.
  void add(double seconds);

  // Returns the expected seconds until a program at this place of the queue (from 1) starts, if one starts whenever a
  // running program ends. `ages_s`: the run times of the running programs so far. A program's expected remaining time
  // is the mean of those known run times that exceed its age, minus its age; if it is older than all of them, its age
  // once more. Nothing: too few run times are known, or no program runs.
  std::optional<double> start_after_s(const std::vector<double>& ages_s, size_t place) const;

 private:
  double left_s(double age_s) const;
  double average_s() const;

  std::array<double, kRunTimesKept> seconds_{};
  size_t added_ = 0;
};

}  // namespace gpuwire::scheduler
