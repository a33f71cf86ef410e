// The durations of work, by its kind: learned from observed completions.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <unordered_map>

namespace gpuwire::server {

// Not synchronised.
class Estimates {
 public:
  // None: no work of this kind was observed.
  std::optional<std::chrono::nanoseconds> find(uint64_t key) const;
  // Updates a moving average, in which the new observation has the weight kEstimateShare, or kEstimateShareOfShorter.
  void learn(uint64_t key, std::chrono::nanoseconds took);

 private:
  // Ns.
  std::unordered_map<uint64_t, double> known_;
};

}  // namespace gpuwire::server
