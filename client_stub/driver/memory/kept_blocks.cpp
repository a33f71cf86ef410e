#include "client_stub/driver/memory/kept_blocks.hpp"

#include <algorithm>
#include <iterator>

namespace gpuwire::client {

bool KeptBlocks::add(const KeptBlock& block) {
  if (by_address_.size() >= kBlocksMax || block.range.bytes > bytes_max_ - bytes_) return false;
  std::vector<uint64_t>& same = by_use_[block.use];
  try {
    same.push_back(block.range.base);
    by_address_.emplace(block.range.base, block);
  } catch (...) {
    std::erase(same, block.range.base);
    if (same.empty()) by_use_.erase(block.use);
    throw;
  }
  bytes_ += block.range.bytes;
  return true;
}

std::optional<AddressRange> KeptBlocks::take(const BlockUse& use) {
  auto same = by_use_.find(use);
  if (same == by_use_.end()) return std::nullopt;
  auto at = by_address_.find(same->second.back());
  const AddressRange range = at->second.range;
  remove(at);
  return range;
}

void KeptBlocks::remove(ByAddress::iterator at) {
  auto same = by_use_.find(at->second.use);
  // The newest goes most often.
  auto found = std::find(same->second.rbegin(), same->second.rend(), at->first);
  same->second.erase(std::next(found).base());
  if (same->second.empty()) by_use_.erase(same);
  bytes_ -= at->second.range.bytes;
  by_address_.erase(at);
}

bool KeptBlocks::holds(uint64_t address) const {
  auto at = by_address_.upper_bound(address);
  return at != by_address_.begin() && std::prev(at)->second.range.contains(address, 1);
}

KeptBlock::Clock::time_point KeptBlocks::oldest() const {
  return std::min_element(by_address_.begin(), by_address_.end(),
                          [](const auto& one, const auto& other) { return one.second.since < other.second.since; })
      ->second.since;
}

}  // namespace gpuwire::client
