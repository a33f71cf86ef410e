#include "client_stub/driver/state/memory/prefetch_demand.hpp"

#include <algorithm>

namespace gpuwire::client {

uint32_t PrefetchDemand::allocated(const BlockUse& use, bool missed, size_t available, Clock::time_point now) {
  auto found = demands_.find(use);
  if (found == demands_.end()) {
    if (!missed) return 0;
    if (demands_.size() >= kUsesMax) demands_.clear();
    found = demands_.emplace(use, Demand{}).first;
  }
  Demand& demand = found->second;
  if (now - demand.last > kMemory) demand = {};
  demand.last = now;
  if (missed) ++demand.misses;
  if (demand.misses < kMissesMin || available > demand.asked / 2) return 0;
  return demand.asked = std::min(std::max(2 * demand.asked, kFirstBlocks), kBlocksMax);
}

void PrefetchDemand::forget_context(uint64_t context) {
  std::erase_if(demands_, [&](const auto& demand) { return demand.first.context == context; });
}

}  // namespace gpuwire::client
