// When the blocks that earlier runs of the program have allocated are asked for: with the first block that it
// allocates on a device, and again when it goes on as they did and has none of them left. kept_memory.hpp has the
// rules.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "client_stub/driver/memory/kept_blocks.hpp"
#include "client_stub/driver/memory/known_allocations.hpp"

namespace gpuwire::client {

// One thread at a time. What it does with the file may throw std::bad_alloc; the file itself fails in silence.
class KnownDemand {
 public:
  using Clock = KeptBlock::Clock;

  // Since the program's first allocation. What it allocates later is neither written down nor asked for.
  static constexpr std::chrono::seconds kFirstWhile{10};
  static constexpr unsigned kAsksMax = 8;  // for one device

  // The program is about to allocate a block on the device which is not here. Gives the sizes of the others that are to
  // be asked for. `here`: those of blocks that have come, or are on their way.
  std::vector<uint64_t> missed(int device, uint64_t bytes, const std::vector<uint64_t>& here, Clock::time_point now);
  // It has allocated one that was none of its own before.
  void allocated(int device, uint64_t bytes, Clock::time_point now);
  // The first while is over: nothing comes of what is told from here on.
  bool over() const noexcept { return over_; }
  // The program ends: what it had little use for is forgotten.
  void ended();

 private:
  // Null: the first while is over.
  KnownAllocations* known(Clock::time_point now);

  std::optional<KnownAllocations> known_;  // once the program allocates
  Clock::time_point until_;
  bool over_ = false;
  std::map<int, unsigned> asks_;  // by device
};

}  // namespace gpuwire::client
