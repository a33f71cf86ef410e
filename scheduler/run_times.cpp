#include "scheduler/run_times.hpp"

#include <algorithm>
#include <numeric>

namespace gpuwire::scheduler {

void RunTimes::add(double seconds) { seconds_[added_++ % kRunTimesKept] = std::max(seconds, 0.0); }

double RunTimes::average_s() const {
  const size_t known = std::min(added_, kRunTimesKept);
  return std::accumulate(seconds_.begin(), seconds_.begin() + ptrdiff_t(known), 0.0) / double(known);
}

double RunTimes::left_s(double age_s) const {
  double longer_s = 0;
  size_t longer = 0;
  for (size_t i = 0; i < std::min(added_, kRunTimesKept); ++i) {
    if (seconds_[i] <= age_s) continue;
    longer_s += seconds_[i] - age_s;
    ++longer;
  }
  return longer ? longer_s / double(longer) : age_s;
}

std::optional<double> RunTimes::start_after_s(const std::vector<double>& ages_s, size_t place) const {
  if (added_ < kRunTimesNeeded || ages_s.empty() || place == 0) return std::nullopt;
  std::vector<double> left;
  for (double age_s : ages_s) left.push_back(left_s(std::max(age_s, 0.0)));
  std::sort(left.begin(), left.end());
  // Programs further back start when the programs that start first end in turn.
  return left[(place - 1) % left.size()] + average_s() * double((place - 1) / left.size());
}

}  // namespace gpuwire::scheduler
