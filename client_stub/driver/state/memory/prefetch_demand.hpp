// How many blocks of device memory a program is likely to allocate next: of a size of which it has allocated several
// one after the other, as many again. Plain data; cached_memory.hpp has the rules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "client_stub/driver/state/memory/cached_blocks.hpp"

namespace gpuwire::client {

class PrefetchDemand {
 public:
  using Clock = CachedBlock::Clock;

  static constexpr unsigned kMissesMin = 2;                  // the second of a size is taken for the beginning of more
  static constexpr std::chrono::milliseconds kMemory{1000};  // if it comes so soon after the one before
  static constexpr uint32_t kFirstBlocks = 2, kBlocksMax = wire::kPrefetchedBlocksMax;
  static constexpr size_t kUsesMax = 64;  // remembered at the same time

  // The program has allocated one of this use; `missed`: there was none for it here. `available`: how many are left, or
  // on their way. Gives how many more to ask for: twice as many as the last time, when half of those are used. May
  // throw std::bad_alloc.
  uint32_t allocated(const BlockUse& use, bool missed, size_t available, Clock::time_point now);
  // The prefetched blocks were freed unused: the demand begins again.
  void forget(const BlockUse& use) { demands_.erase(use); }
  void forget_context(uint64_t context);
  void forget_all() { demands_.clear(); }

 private:
  struct Demand {
    unsigned misses = 0;
    uint32_t asked = 0;  // the last time
    Clock::time_point last;
  };
  std::map<BlockUse, Demand> demands_;
};

}  // namespace gpuwire::client
