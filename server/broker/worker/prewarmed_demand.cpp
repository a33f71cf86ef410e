#include "server/broker/worker/prewarmed_demand.hpp"

#include <algorithm>

namespace gpuwire::server {

using std::chrono::milliseconds;

void PrewarmedDemand::set_limits(Limits limits) {
  limits_ = limits;
  limits_.most = limits.least ? std::max(limits.least, limits.most) : 0;
  reached_.resize(limits_.most);
  while (came_.size() > limits_.most) came_.pop_front();
}

void PrewarmedDemand::came(Time now) {
  if (limits_.most == 0) return;
  if (!came_.empty()) now = std::max(now, came_.back());
  if (came_.size() == limits_.most) came_.pop_front();
  came_.push_back(now);
  while (now - came_.front() > kPrewarmedWindowStarts * start_) came_.pop_front();
  std::fill_n(reached_.begin(), came_.size(), now);
}

void PrewarmedDemand::started(Duration took) {
  took = std::clamp<Duration>(took, milliseconds(kPrewarmedStartMinMs), milliseconds(kStartHoldMs));
  start_ = measured_ ? start_ + (took - start_) / 4 : took;
  measured_ = true;
}

PrewarmedDemand::Duration PrewarmedDemand::hold() const {
  return std::min<Duration>(kPrewarmedHoldStarts * start_, milliseconds(kPrewarmedHoldMaxMs));
}

unsigned PrewarmedDemand::wanted(Time now) const {
  for (unsigned count = limits_.most; count > limits_.least; --count) {
    if (reached_[count - 1] && now - *reached_[count - 1] < hold()) return count;
  }
  return limits_.least;
}

std::optional<PrewarmedDemand::Time> PrewarmedDemand::next_change(Time now) const {
  const unsigned count = wanted(now);
  if (count <= limits_.least) return std::nullopt;
  return *reached_[count - 1] + hold();
}

}  // namespace gpuwire::server
