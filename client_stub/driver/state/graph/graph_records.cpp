#include "client_stub/driver/state/graph/graph_records.hpp"
#include "client_stub/driver/state/copy/memory_in_flight.hpp"

#include <algorithm>
#include <new>
#include <tuple>
#include <utility>

#include "protocol/wire/limits.hpp"

namespace gpuwire::client {
namespace {

constexpr int kInnerDepthMax = 64;  // the driver's bound for nested graphs, and a bound for circles

}  // namespace

// A block ends with its last holder, which must not happen under the lock: the objects here hold removed blocks until
// the lock is released.

void GraphRecords::add(uint64_t owner, uint64_t node, std::span<const GraphUse> uses) {
  if (uses.empty()) return;
  std::shared_ptr<const GraphUses> before;
  MutexLock lock(mutex_);
  Record& record = records_[owner];
  before.swap(record.together);
  for (const GraphUse& use : uses) record.uses.push_back({node, use});
  if (node) graphs_[node] = owner;
  count();
}

void GraphRecords::replace(uint64_t owner, uint64_t node, std::span<const GraphUse> uses) {
  std::vector<NodeUse> before;
  std::shared_ptr<const GraphUses> together;
  MutexLock lock(mutex_);
  if (uses.empty() && !records_.contains(owner)) return;
  together.swap(records_[owner].together);
  auto& all = records_[owner].uses;
  auto gone = std::stable_partition(all.begin(), all.end(), [&](const NodeUse& use) { return use.node != node; });
  before.assign(std::make_move_iterator(gone), std::make_move_iterator(all.end()));
  all.erase(gone, all.end());
  for (const GraphUse& use : uses) all.push_back({node, use});
  count();
}

void GraphRecords::collect(uint64_t owner, std::vector<NodeUse>& out, int depth) const {
  auto found = records_.find(owner);
  if (found == records_.end() || depth > kInnerDepthMax) return;
  out.insert(out.end(), found->second.uses.begin(), found->second.uses.end());
  for (uint64_t inner : found->second.inner) collect(inner, out, depth + 1);
}

GraphRecords::Whole GraphRecords::collect_whole(uint64_t owner, int depth) const noexcept {
  auto found = records_.find(owner);
  if (found == records_.end() || depth > kInnerDepthMax) return {};
  Whole all = found->second.whole;
  for (uint64_t inner : found->second.inner) all.join(collect_whole(inner, depth + 1));
  return all;
}

void GraphRecords::copy(uint64_t from, uint64_t to, uint64_t node) {
  if (count_.load(std::memory_order_relaxed) == 0) return;
  std::vector<NodeUse> all;
  std::shared_ptr<const GraphUses> before;
  MutexLock lock(mutex_);
  collect(from, all, 0);
  const Whole whole = collect_whole(from, 0);
  auto source = records_.find(from);
  std::vector<uint64_t> allocations = source == records_.end() ? std::vector<uint64_t>{} : source->second.allocations;
  if (all.empty() && allocations.empty() && whole.is_nothing()) return;
  Record& record = records_[to];
  before.swap(record.together);
  record.whole.join(whole);
  record.allocations.insert(record.allocations.end(), allocations.begin(), allocations.end());
  for (NodeUse& use : all) record.uses.push_back({node ? node : use.node, std::move(use.use)});
  count();
}

void GraphRecords::take_over(uint64_t from, uint64_t to) {
  if (count_.load(std::memory_order_relaxed) == 0) return;
  std::vector<NodeUse> all;
  std::shared_ptr<const GraphUses> before;
  MutexLock lock(mutex_);
  collect(from, all, 0);
  const Whole whole = collect_whole(from, 0);
  if (all.empty() && whole.is_nothing() && !records_.contains(to)) return;
  Record& record = records_[to];
  std::swap(record.uses, all);
  before.swap(record.together);
  record.whole.join(whole);
  count();
}

void GraphRecords::note_inner(uint64_t owner, uint64_t inner) {
  MutexLock lock(mutex_);
  auto& all = records_[owner].inner;
  if (std::find(all.begin(), all.end(), inner) == all.end()) all.push_back(inner);
  count();
}

void GraphRecords::rename(uint64_t owner, uint64_t original, uint64_t node) {
  if (count_.load(std::memory_order_relaxed) == 0) return;
  MutexLock lock(mutex_);
  graphs_[node] = owner;
  auto found = records_.find(owner);
  if (found == records_.end()) return;
  for (NodeUse& use : found->second.uses) {
    if (use.node == original) use.node = node;
  }
}

void GraphRecords::note_nodes(uint64_t graph, std::span<const CUgraphNode> nodes) {
  MutexLock lock(mutex_);
  for (CUgraphNode node : nodes) graphs_[reinterpret_cast<uint64_t>(node)] = graph;
  count();
}

uint64_t GraphRecords::graph_of(uint64_t node) const noexcept {
  MutexLock lock(mutex_);
  auto found = graphs_.find(node);
  return found == graphs_.end() ? 0 : found->second;
}

void GraphRecords::forget(uint64_t owner, std::vector<uint64_t>& nodes, std::vector<uint64_t>& inner) {
  if (count_.load(std::memory_order_relaxed) == 0) return;
  std::vector<Record> gone;
  MutexLock lock(mutex_);
  std::vector<uint64_t> owners{owner};
  while (!owners.empty()) {
    uint64_t next = owners.back();
    owners.pop_back();
    if (next != owner) inner.push_back(next);
    std::erase_if(graphs_, [&](const auto& row) {
      if (row.second == next) nodes.push_back(row.first);
      return row.second == next;
    });
    auto found = records_.find(next);
    if (found == records_.end()) continue;
    owners.insert(owners.end(), found->second.inner.begin(), found->second.inner.end());
    gone.push_back(std::move(found->second));
    records_.erase(found);
  }
  count();
}

void GraphRecords::forget_node(uint64_t node) noexcept {
  if (count_.load(std::memory_order_relaxed) == 0) return;
  if (uint64_t graph = graph_of(node)) replace(graph, node, {});
  MutexLock lock(mutex_);
  graphs_.erase(node);
  count();
}

void GraphRecords::note_allocation(uint64_t owner, uint64_t address) {
  MutexLock lock(mutex_);
  records_[owner].allocations.push_back(address);
  count();
}

void GraphRecords::note_free(uint64_t owner, uint64_t address) {
  MutexLock lock(mutex_);
  auto found = records_.find(owner);
  if (found != records_.end()) std::erase(found->second.allocations, address);
}

void GraphRecords::note_judged(uint64_t owner) {
  MutexLock lock(mutex_);
  records_[owner].whole.judged = true;
  count();
}

bool GraphRecords::launch_is_judged(uint64_t owner) const {
  if (count_.load(std::memory_order_relaxed) == 0) return false;
  MutexLock lock(mutex_);
  auto found = records_.find(owner);
  return found != records_.end() && (found->second.whole.judged || !found->second.allocations.empty());
}

void GraphRecords::note_awaits(uint64_t owner, Awaits awaits) {
  if (awaits == Awaits::nothing) return;
  MutexLock lock(mutex_);
  records_[owner].whole.join({.awaits = awaits});
  count();
}

Awaits GraphRecords::awaits_of(uint64_t owner) const noexcept {
  if (count_.load(std::memory_order_relaxed) == 0) return Awaits::nothing;
  MutexLock lock(mutex_);
  auto found = records_.find(owner);
  return found == records_.end() ? Awaits::nothing : found->second.whole.awaits;
}

namespace {

// The ranges of regions in the form that a launch sends. `ranges` is in the order of addresses; two ranges of one
// region that are at most `gap` bytes apart become one.
std::vector<uint64_t> pinned_of(const std::vector<GraphUse>& ranges, uint64_t gap) {
  std::vector<uint64_t> pinned;
  uint64_t region = 0;
  for (const GraphUse& use : ranges) {
    if (use.block) continue;
    if (!pinned.empty() && use.region == region) {
      uint64_t& bytes = pinned.back();
      const uint64_t begin = pinned[pinned.size() - 2];
      if (use.address <= begin + bytes || use.address - (begin + bytes) <= gap) {
        bytes = std::max(bytes, use.address + use.bytes - begin);
        continue;
      }
    }
    pinned.insert(pinned.end(), {use.address, use.bytes});
    region = use.region;
  }
  return pinned;
}

// Memory is compared in pages, so a gap of one page costs no more than a further range.
constexpr uint64_t kGapBytesMax = 4096;

// Sorts by address and removes duplicates.
std::shared_ptr<const GraphUses> each_once(std::vector<GraphUse> ranges) {
  auto key = [](const GraphUse& use) { return std::tuple(use.address, use.bytes, use.block.get(), use.written); };
  std::sort(ranges.begin(), ranges.end(), [&](const GraphUse& a, const GraphUse& b) { return key(a) < key(b); });
  ranges.erase(
      std::unique(ranges.begin(), ranges.end(), [&](const GraphUse& a, const GraphUse& b) { return key(a) == key(b); }),
      ranges.end());
  std::vector<uint64_t> blocks;
  for (const GraphUse& use : ranges) {
    if (use.block) blocks.push_back(use.block->number);
  }
  std::vector<uint64_t> pinned = pinned_of(ranges, kGapBytesMax);
  if (pinned.size() > wire::kListItemsMax) pinned = pinned_of(ranges, UINT64_MAX);
  std::sort(blocks.begin(), blocks.end());
  blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  return std::make_shared<const GraphUses>(GraphUses{std::move(ranges), std::move(blocks), std::move(pinned), false});
}

}  // namespace

std::shared_ptr<const GraphUses> GraphRecords::uses_of(uint64_t owner) {
  if (count_.load(std::memory_order_relaxed) == 0) return nullptr;
  MutexLock lock(mutex_);
  auto found = records_.find(owner);
  if (found == records_.end() || found->second.uses.empty()) return nullptr;
  Record& record = found->second;
  if (!record.together) {
    std::vector<GraphUse> ranges;
    ranges.reserve(record.uses.size());
    for (const NodeUse& each : record.uses) ranges.push_back(each.use);
    record.together = each_once(std::move(ranges));
  }
  return record.together;
}

}  // namespace gpuwire::client
