#include "client_stub/driver/state/memory/profiled_demand.hpp"

#include <algorithm>

#include "client_stub/driver/state/warm_start/program_name.hpp"

namespace gpuwire::client {

ProfiledAllocations* ProfiledDemand::known(Clock::time_point now) {
  if (over_) return nullptr;
  if (!known_) {
    known_.emplace(std::make_shared<WarmStart>(warm_start_folder(), own_program_digest()));
    until_ = now + kFirstWhile;
  }
  over_ = now >= until_;
  return over_ ? nullptr : &*known_;
}

std::vector<uint64_t> ProfiledDemand::missed(int device, uint64_t bytes, const std::vector<uint64_t>& here,
                                             Clock::time_point now) {
  const ProfiledAllocations* of_earlier_runs = known(now);
  if (!of_earlier_runs) return {};
  std::vector<uint64_t> sizes = of_earlier_runs->awaited(device);
  auto leave_out = [&](uint64_t size) {
    const auto found = std::find(sizes.begin(), sizes.end(), size);
    if (found == sizes.end()) return false;
    sizes.erase(found);
    return true;
  };
  // The first block may differ from the earlier runs. If a later block differs, the profile does not fit this run, and
  // the client requests no further blocks.
  const bool expected = leave_out(bytes);
  for (uint64_t size : here) leave_out(size);
  const auto before = asks_.find(device);
  if (sizes.empty() || (before != asks_.end() && (before->second == kAsksMax || !expected))) return {};
  ++asks_[device];
  return sizes;
}

void ProfiledDemand::allocated(int device, uint64_t bytes, Clock::time_point now) {
  if (ProfiledAllocations* of_this_program = known(now)) of_this_program->used(device, bytes);
}

void ProfiledDemand::ended() {
  if (known_ && !asks_.empty() && known_->mostly_unused()) known_->forget_unused();
}

}  // namespace gpuwire::client
