#include "client_stub/driver/memory/known_demand.hpp"

#include <algorithm>

#include "client_stub/driver/module/program_name.hpp"

namespace gpuwire::client {

KnownAllocations* KnownDemand::known(Clock::time_point now) {
  if (over_) return nullptr;
  if (!known_) {
    known_.emplace(look_ahead_folder("memory"), own_program_digest());
    until_ = now + kFirstWhile;
  }
  over_ = now >= until_;
  return over_ ? nullptr : &*known_;
}

std::vector<uint64_t> KnownDemand::missed(int device, uint64_t bytes, const std::vector<uint64_t>& here,
                                          Clock::time_point now) {
  const KnownAllocations* of_earlier_runs = known(now);
  if (!of_earlier_runs) return {};
  std::vector<uint64_t> sizes = of_earlier_runs->awaited(device);
  auto leave_out = [&](uint64_t size) {
    const auto found = std::find(sizes.begin(), sizes.end(), size);
    if (found == sizes.end()) return false;
    sizes.erase(found);
    return true;
  };
  // A program may begin with another block than its earlier runs. One that goes on with others does something else.
  const bool expected = leave_out(bytes);
  for (uint64_t size : here) leave_out(size);
  const auto before = asks_.find(device);
  if (sizes.empty() || (before != asks_.end() && (before->second == kAsksMax || !expected))) return {};
  ++asks_[device];
  return sizes;
}

void KnownDemand::allocated(int device, uint64_t bytes, Clock::time_point now) {
  if (KnownAllocations* of_this_program = known(now)) of_this_program->used(device, bytes);
}

void KnownDemand::ended() {
  if (known_ && !asks_.empty() && known_->mostly_unused()) known_->forget_unused();
}

}  // namespace gpuwire::client
