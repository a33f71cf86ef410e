// Decides when the blocks of earlier runs of the program are requested: with the first block that it allocates on a
// device, and again when it repeats those runs and has none of the blocks left. cached_memory.hpp has the rules.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "client_stub/driver/state/memory/cached_blocks.hpp"
#include "client_stub/driver/state/warm_start/profiled_allocations.hpp"

namespace gpuwire::client {

// One thread at a time. Operations on the file may throw std::bad_alloc; failures of the file itself are ignored.
class ProfiledDemand {
 public:
  using Clock = CachedBlock::Clock;

  // The time since the program's first allocation. Later allocations are neither recorded nor requested.
  static constexpr std::chrono::seconds kFirstWhile{10};
  // For one device.
  static constexpr unsigned kAsksMax = 8;

  // The program is about to allocate a block on the device that is not cached. Returns the sizes of the other blocks to
  // request. `here` has the sizes of blocks that are cached or requested.
  std::vector<uint64_t> missed(int device, uint64_t bytes, const std::vector<uint64_t>& here, Clock::time_point now);
  // The program has allocated a block that it did not allocate before.
  void allocated(int device, uint64_t bytes, Clock::time_point now);
  // The recording period is over: later reports have no effect.
  bool over() const noexcept { return over_; }
  // The program ends: removes unused entries from the profile.
  void ended();

 private:
  // Null: the recording period is over.
  ProfiledAllocations* known(Clock::time_point now);

  // Set when the program allocates.
  std::optional<ProfiledAllocations> known_;
  Clock::time_point until_;
  bool over_ = false;
  // By device.
  std::map<int, unsigned> asks_;
};

}  // namespace gpuwire::client
