#include "scheduler/device_time.hpp"

#include <algorithm>

namespace gpuwire::scheduler {

void DeviceTime::charge(Session* session, Duration amount) {
  if (amount <= Duration::zero()) return;
  charged_ += amount;
  for (TimeCharge& charge : charges_) {
    if (charge.session == session) {
      charge.amount += amount;
      return;
    }
  }
  charges_.push_back({session, amount});
}

std::span<const TimeCharge> DeviceTime::settle_claims(Time until, std::span<const TimeClaim> claims, bool wanted) {
  charges_.clear();
  if (until <= settled_) return charges_;
  edges_.clear();
  edges_.push_back(settled_);
  edges_.push_back(until);
  for (const TimeClaim& claim : claims) {
    if (claim.from > settled_ && claim.from < until) edges_.push_back(claim.from);
    if (claim.to > settled_ && claim.to < until) edges_.push_back(claim.to);
  }
  std::sort(edges_.begin(), edges_.end());
  for (size_t i = 0; i + 1 < edges_.size(); ++i) {
    const Time from = edges_[i], to = edges_[i + 1];
    if (to <= from) continue;
    const auto covers = [&](const TimeClaim& claim) { return claim.from <= from && claim.to >= to; };
    const auto sharers = std::count_if(claims.begin(), claims.end(), covers);
    if (sharers == 0) {
      (wanted ? system_ : idle_) += to - from;
      continue;
    }
    const Duration each = (to - from) / sharers;
    for (const TimeClaim& claim : claims) {
      if (covers(claim)) charge(claim.session, each);
    }
    system_ += (to - from) - each * sharers;
  }
  settled_ = until;
  return charges_;
}

std::span<const TimeCharge> DeviceTime::settle_busy(Time until, std::span<const BusyTime> busy) {
  charges_.clear();
  if (until <= settled_) return charges_;
  const Duration elapsed = until - settled_;
  Duration sum{};
  for (const BusyTime& one : busy) sum += one.busy;
  Duration given{};
  for (const BusyTime& one : busy) {
    Duration amount = one.busy;
    if (sum > elapsed) {
      const auto scaled =
          static_cast<double>(amount.count()) / static_cast<double>(sum.count()) * static_cast<double>(elapsed.count());
      amount = std::min(Duration(static_cast<int64_t>(scaled)), elapsed - given);
    }
    given += amount;
    charge(one.session, amount);
  }
  idle_ += elapsed - given;
  settled_ = until;
  return charges_;
}

}  // namespace gpuwire::scheduler
