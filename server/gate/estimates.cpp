#include "server/gate/estimates.hpp"

#include "server/gate/limits.hpp"

namespace gpuwire::server {

std::optional<std::chrono::nanoseconds> Estimates::find(uint64_t key) const {
  auto found = known_.find(key);
  if (found == known_.end()) return std::nullopt;
  return std::chrono::nanoseconds(int64_t(found->second));
}

void Estimates::learn(uint64_t key, std::chrono::nanoseconds took) {
  if (known_.size() >= kEstimatesMax) known_.clear();
  auto [entry, fresh] = known_.try_emplace(key, double(took.count()));
  if (fresh) return;
  const double more = double(took.count()) - entry->second;
  entry->second += more * (more < 0 ? kEstimateShareOfShorter : kEstimateShare);
}

}  // namespace gpuwire::server
