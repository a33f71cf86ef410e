// How long programs have run of late, and what that lets a program that would wait expect. Pure logic.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <vector>

namespace gpuwire::scheduler {

inline constexpr size_t kRunTimesKept = 64;   // the latest
inline constexpr size_t kRunTimesNeeded = 3;  // fewer say nothing

class RunTimes {
 public:
  // A program has ended after so many seconds.
  void add(double seconds);

  // Seconds until a program at this place of the queue (from 1) may expect to start, if one starts whenever one of the
  // running programs ends. `ages_s`: for how long these have run. A program is expected to run for as much longer as
  // those did that ran for longer than its age, on average; one that is older than all of them, for its age once more.
  // Nothing: too few run times are known, or no program runs.
  std::optional<double> start_after_s(const std::vector<double>& ages_s, size_t place) const;

 private:
  double left_s(double age_s) const;
  double average_s() const;

  std::array<double, kRunTimesKept> seconds_{};
  size_t added_ = 0;
};

}  // namespace gpuwire::scheduler
