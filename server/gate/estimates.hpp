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
  // None: nothing like it has been seen.
  std::optional<std::chrono::nanoseconds> find(uint64_t key) const;
  // A moving average, kEstimateShare for the new one, or kEstimateShareOfShorter.
  void learn(uint64_t key, std::chrono::nanoseconds took);

 private:
  std::unordered_map<uint64_t, double> known_;  // ns
};

}  // namespace gpuwire::server
