// Predicts how many blocks of device memory a program allocates next: if it has allocated several of a size in
// succession, as many again. Plain data; cached_memory.hpp has the rules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "client_stub/driver/state/memory/cached_blocks.hpp"

namespace gpuwire::client {

class PrefetchDemand {
 public:
  using Clock = CachedBlock::Clock;

  // The second one of a size begins a series.
  static constexpr unsigned kMissesMin = 2;
  // If it follows the first within this time.
  static constexpr std::chrono::milliseconds kMemory{1000};
  static constexpr uint32_t kFirstBlocks = 2, kBlocksMax = wire::kPrefetchedBlocksMax;
  // Stored at the same time.
  static constexpr size_t kUsesMax = 64;

  // The program has allocated a block of this use; `missed`: none was cached. `available` is the number of cached and
  // requested blocks. Returns the number to request: twice as many as the last time, when half of those are used. May
  // throw std::bad_alloc.
  uint32_t allocated(const BlockUse& use, bool missed, size_t available, Clock::time_point now);
  // Prefetched blocks were freed unused, so the demand begins again.
  void forget(const BlockUse& use) { demands_.erase(use); }
  void forget_context(uint64_t context);
  void forget_all() { demands_.clear(); }

 private:
  struct Demand {
    unsigned misses = 0;
    // The last time.
    uint32_t asked = 0;
    Clock::time_point last;
  };
  std::map<BlockUse, Demand> demands_;
};

}  // namespace gpuwire::client
