// Small managed allocations, cut from blocks of the server: a separate block for each would cost a round trip, and
// chunks of its own.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace gpuwire::client {

// Plain data; its owner has a lock.
class ManagedHeap {
 public:
  static constexpr uint64_t kBlockBytes = 2u << 20;
  // Larger allocations are the server's.
  static constexpr uint64_t kLargestBytes = 512u << 10;
  static constexpr uint64_t kAlignmentBytes = 512;

  // Returns an address for `bytes` (1 .. kLargestBytes); nothing: another block is needed.
  std::optional<uint64_t> take(uint64_t bytes);
  void add_block(uint64_t base);
  // Takes memory of take() back, with the same size. Removes and returns a block without allocations, except the last
  // block.
  std::optional<uint64_t> give(uint64_t address, uint64_t bytes);

 private:
  static uint64_t rounded(uint64_t bytes) { return (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes; }
  uint64_t block_of(uint64_t address) const;

  // Address and size; never across blocks.
  std::map<uint64_t, uint64_t> free_;
  // Base and used bytes.
  std::map<uint64_t, uint64_t> blocks_;
};

}  // namespace gpuwire::client
