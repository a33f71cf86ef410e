// Blocks of device memory that are free for the program's next allocations: blocks that the program has freed, and
// prefetched ones. The blocks are indexed by use, by address, and by age. Plain data; cached_memory.hpp has the rules.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "client_stub/driver/state/memory/address_map.hpp"
#include "protocol/wire/limits.hpp"

namespace gpuwire::client {

// The key of a block: an allocation gets a block with an equal key, of the same size. Memory of a pool belongs to the
// stream in whose order it was freed.
struct BlockUse {
  // Or pool.
  RangeKind kind = RangeKind::device;
  // Handle.
  uint64_t context = 0;
  uint64_t bytes = 0;
  // As in AddressRange::owner.
  uint64_t pool = 0;
  // Wire handle; of pools.
  uint64_t stream = 0;
  auto operator<=>(const BlockUse&) const = default;
};

struct CachedBlock {
  using Clock = std::chrono::steady_clock;

  AddressRange range;
  BlockUse use;
  Clock::time_point since;
  // Prefetched: the program has never had it.
  bool ahead = false;
  // Profiled: prefetched because earlier runs allocated one like it.
  bool known = false;
  // The free_at_rest frame that may have freed it and is unanswered; 0: none.
  uint64_t leaving = 0;
};

class CachedBlocks {
 public:
  static constexpr size_t kBlocksMax = wire::kCachedBlocksMax;

  explicit CachedBlocks(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  // Returns false if there is no room, or the map has a part of the block already. May throw std::bad_alloc; nothing
  // has changed then.
  bool add(const CachedBlock& block);
  // Returns the newest suitable block that does not leave.
  std::optional<CachedBlock> take(const BlockUse& use);
  // Returns the number of suitable blocks that do not leave.
  size_t count(const BlockUse& use) const;
  template <class Choose>
  std::vector<CachedBlock> take_if(Choose&& choose) {
    std::vector<CachedBlock> taken;
    taken.reserve(by_address_.size());  // no failure from here on
    for (auto at = by_address_.begin(); at != by_address_.end();) {
      const auto next = std::next(at);
      if (choose(at->second)) {
        taken.push_back(at->second);
        remove(at);
      }
      at = next;
    }
    return taken;
  }
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (const auto& [base, block] : by_address_) visit(block);
  }
  // `visit` may change `since` and `leaving`.
  template <class Visit>
  void for_each(Visit&& visit) {
    for (auto& [base, block] : by_address_) visit(block);
  }
  // Returns the block at this address, or null.
  const CachedBlock* find(uint64_t address) const;

  bool empty() const { return by_address_.empty(); }
  size_t size() const { return by_address_.size(); }
  uint64_t bytes() const { return bytes_; }                    // except profiled blocks
  uint64_t profiled_bytes() const { return profiled_bytes_; }  // kProfiledBytesMax at most
  // All blocks lie in [low(), high()); 0 and 0: there are none.
  uint64_t low() const { return empty() ? 0 : by_address_.begin()->first; }
  uint64_t high() const { return empty() ? 0 : by_address_.rbegin()->second.range.end(); }

 private:
  using ByAddress = std::map<uint64_t, CachedBlock>;
  void remove(ByAddress::iterator at);

  uint64_t& bytes_like(const CachedBlock& block) { return block.known ? profiled_bytes_ : bytes_; }

  const uint64_t bytes_max_;
  uint64_t bytes_ = 0, profiled_bytes_ = 0;
  // By first byte; disjoint.
  ByAddress by_address_;
  // First bytes, the newest last; no list is empty.
  std::map<BlockUse, std::vector<uint64_t>> by_use_;
};

}  // namespace gpuwire::client
