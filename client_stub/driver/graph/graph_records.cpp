#include "client_stub/driver/graph/graph_records.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace gpuwire::client {
namespace {

constexpr int kInnerDepthMax = 64;  // as deep as the driver lets graphs be nested, and a bound for circles

}  // namespace

// Blocks end when nobody holds them, which must not happen under the lock: what is taken out is kept until it is
// released.

void GraphRecords::add(uint64_t owner, uint64_t node, std::span<const GraphUse> uses) {
  if (uses.empty()) return;
  std::lock_guard lock(mutex_);
  for (const GraphUse& use : uses) records_[owner].uses.push_back({node, use});
  if (node) graphs_[node] = owner;
  count();
}

void GraphRecords::replace(uint64_t owner, uint64_t node, std::span<const GraphUse> uses) {
  std::vector<NodeUse> before;
  std::lock_guard lock(mutex_);
  if (uses.empty() && !records_.contains(owner)) return;
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

void GraphRecords::copy(uint64_t from, uint64_t to, uint64_t node) {
  if (count_.load(std::memory_order_relaxed) == 0) return;
  std::vector<NodeUse> all;
  std::lock_guard lock(mutex_);
  collect(from, all, 0);
  auto source = records_.find(from);
  std::vector<uint64_t> allocations = source == records_.end() ? std::vector<uint64_t>{} : source->second.allocations;
  if (all.empty() && allocations.empty()) return;
  Record& record = records_[to];
  record.allocations.insert(record.allocations.end(), allocations.begin(), allocations.end());
  for (NodeUse& use : all) record.uses.push_back({node ? node : use.node, std::move(use.use)});
  count();
}

void GraphRecords::take_over(uint64_t from, uint64_t to) {
  if (count_.load(std::memory_order_relaxed) == 0) return;
  std::vector<NodeUse> all;
  std::lock_guard lock(mutex_);
  collect(from, all, 0);
  if (all.empty() && !records_.contains(to)) return;
  std::swap(records_[to].uses, all);
  count();
}

void GraphRecords::note_inner(uint64_t owner, uint64_t inner) {
  std::lock_guard lock(mutex_);
  auto& all = records_[owner].inner;
  if (std::find(all.begin(), all.end(), inner) == all.end()) all.push_back(inner);
  count();
}

void GraphRecords::rename(uint64_t owner, uint64_t original, uint64_t node) {
  if (count_.load(std::memory_order_relaxed) == 0) return;
  std::lock_guard lock(mutex_);
  graphs_[node] = owner;
  auto found = records_.find(owner);
  if (found == records_.end()) return;
  for (NodeUse& use : found->second.uses) {
    if (use.node == original) use.node = node;
  }
}

void GraphRecords::note_nodes(uint64_t graph, std::span<const CUgraphNode> nodes) {
  std::lock_guard lock(mutex_);
  for (CUgraphNode node : nodes) graphs_[reinterpret_cast<uint64_t>(node)] = graph;
  count();
}

uint64_t GraphRecords::graph_of(uint64_t node) const noexcept {
  std::lock_guard lock(mutex_);
  auto found = graphs_.find(node);
  return found == graphs_.end() ? 0 : found->second;
}

void GraphRecords::forget(uint64_t owner, std::vector<uint64_t>& nodes, std::vector<uint64_t>& inner) {
  if (count_.load(std::memory_order_relaxed) == 0) return;
  std::vector<Record> gone;
  std::lock_guard lock(mutex_);
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
  std::lock_guard lock(mutex_);
  graphs_.erase(node);
  count();
}

void GraphRecords::note_allocation(uint64_t owner, uint64_t address) {
  std::lock_guard lock(mutex_);
  records_[owner].allocations.push_back(address);
  count();
}

void GraphRecords::note_free(uint64_t owner, uint64_t address) {
  std::lock_guard lock(mutex_);
  auto found = records_.find(owner);
  if (found != records_.end()) std::erase(found->second.allocations, address);
}

bool GraphRecords::leaves_memory(uint64_t owner) const {
  if (count_.load(std::memory_order_relaxed) == 0) return false;
  std::lock_guard lock(mutex_);
  auto found = records_.find(owner);
  return found != records_.end() && !found->second.allocations.empty();
}

std::vector<GraphUse> GraphRecords::uses_of(uint64_t owner) const {
  std::vector<GraphUse> out;
  if (count_.load(std::memory_order_relaxed) == 0) return out;
  std::lock_guard lock(mutex_);
  auto found = records_.find(owner);
  if (found == records_.end()) return out;
  for (const NodeUse& each : found->second.uses) {
    bool known = std::any_of(out.begin(), out.end(), [&](const GraphUse& use) {
      return use.block == each.use.block && use.address == each.use.address && use.bytes == each.use.bytes;
    });
    if (!known) out.push_back(each.use);
  }
  return out;
}

}  // namespace gpuwire::client
