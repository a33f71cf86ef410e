#include "client_stub/driver/state/memory/cached_blocks.hpp"

#include <algorithm>
#include <iterator>

namespace gpuwire::client {

bool CachedBlocks::add(const CachedBlock& block) {
  const uint64_t most = block.known ? wire::kProfiledBytesMax : bytes_max_;
  if (by_address_.size() >= kBlocksMax || block.range.bytes > most - bytes_like(block)) return false;
  const auto next = by_address_.upper_bound(block.range.base);
  if (next != by_address_.end() && next->first < block.range.end()) return false;
  if (find(block.range.base)) return false;
  std::vector<uint64_t>& same = by_use_[block.use];
  try {
    same.push_back(block.range.base);
    by_address_.emplace(block.range.base, block);
  } catch (...) {
    std::erase(same, block.range.base);
    if (same.empty()) by_use_.erase(block.use);
    throw;
  }
  bytes_like(block) += block.range.bytes;
  return true;
}

std::optional<CachedBlock> CachedBlocks::take(const BlockUse& use) {
  auto same = by_use_.find(use);
  if (same == by_use_.end()) return std::nullopt;
  for (auto base = same->second.rbegin(); base != same->second.rend(); ++base) {
    auto at = by_address_.find(*base);
    if (at->second.leaving != 0) continue;
    const CachedBlock block = at->second;
    remove(at);
    return block;
  }
  return std::nullopt;
}

size_t CachedBlocks::count(const BlockUse& use) const {
  auto same = by_use_.find(use);
  if (same == by_use_.end()) return 0;
  return size_t(std::count_if(same->second.begin(), same->second.end(),
                              [&](uint64_t base) { return by_address_.find(base)->second.leaving == 0; }));
}

void CachedBlocks::remove(ByAddress::iterator at) {
  auto same = by_use_.find(at->second.use);
  // The newest block is removed most often.
  auto found = std::find(same->second.rbegin(), same->second.rend(), at->first);
  same->second.erase(std::next(found).base());
  if (same->second.empty()) by_use_.erase(same);
  bytes_like(at->second) -= at->second.range.bytes;
  by_address_.erase(at);
}

const CachedBlock* CachedBlocks::find(uint64_t address) const {
  auto at = by_address_.upper_bound(address);
  if (at == by_address_.begin() || !std::prev(at)->second.range.contains(address, 1)) return nullptr;
  return &std::prev(at)->second;
}

}  // namespace gpuwire::client
