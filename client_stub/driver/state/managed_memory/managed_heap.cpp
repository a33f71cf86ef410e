#include "client_stub/driver/state/managed_memory/managed_heap.hpp"

#include <algorithm>
#include <iterator>

namespace gpuwire::client {

uint64_t ManagedHeap::block_of(uint64_t address) const { return std::prev(blocks_.upper_bound(address))->first; }

std::optional<uint64_t> ManagedHeap::take(uint64_t bytes) {
  bytes = rounded(bytes);
  auto found = std::find_if(free_.begin(), free_.end(), [&](const auto& range) { return range.second >= bytes; });
  if (found == free_.end()) return std::nullopt;
  auto [address, size] = *found;
  free_.erase(found);
  if (size > bytes) free_.emplace(address + bytes, size - bytes);
  blocks_[block_of(address)] += bytes;
  return address;
}

void ManagedHeap::add_block(uint64_t base) {
  blocks_.emplace(base, 0);
  free_.emplace(base, kBlockBytes);
}

std::optional<uint64_t> ManagedHeap::give(uint64_t address, uint64_t bytes) {
  bytes = rounded(bytes);
  const uint64_t block = block_of(address);
  uint64_t& used = blocks_[block];
  used -= bytes;
  auto at = free_.emplace(address, bytes).first;
  if (auto next = std::next(at);
      next != free_.end() && at->first + at->second == next->first && next->first < block + kBlockBytes) {
    at->second += next->second;
    free_.erase(next);
  }
  if (at != free_.begin()) {
    auto before = std::prev(at);
    if (before->first >= block && before->first + before->second == at->first) {
      before->second += at->second;
      free_.erase(at);
    }
  }
  if (used != 0 || blocks_.size() == 1) return std::nullopt;
  free_.erase(block);
  blocks_.erase(block);
  return block;
}

}  // namespace gpuwire::client
