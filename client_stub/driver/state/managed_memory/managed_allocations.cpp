#include "client_stub/driver/state/managed_memory/managed_allocations.hpp"

#include <utility>

namespace gpuwire::client {

void ManagedAllocations::note_mapped(uint64_t context, uint64_t address) {
  MutexLock lock(mutex_);
  contexts_[context].mapped.push_back(address);
}

void ManagedAllocations::note_unmapped(uint64_t context, uint64_t address) {
  MutexLock lock(mutex_);
  std::erase(contexts_[context].mapped, address);
}

std::optional<uint64_t> ManagedAllocations::take_small(uint64_t context, uint64_t bytes) {
  MutexLock lock(mutex_);
  return contexts_[context].heap.take(bytes);
}

void ManagedAllocations::add_block(uint64_t context, uint64_t base) {
  MutexLock lock(mutex_);
  contexts_[context].heap.add_block(base);
}

std::optional<uint64_t> ManagedAllocations::give_small(uint64_t context, const SmallAllocation& given) {
  MutexLock lock(mutex_);
  auto found = contexts_.find(context);
  return found == contexts_.end() ? std::nullopt : found->second.heap.give(given.address, given.bytes);
}

void ManagedAllocations::put_off(uint64_t context, const SmallAllocation& freed) {
  MutexLock lock(mutex_);
  contexts_[context].put_off.push_back(freed);
}

std::vector<SmallAllocation> ManagedAllocations::take_put_off(uint64_t context) {
  MutexLock lock(mutex_);
  auto found = contexts_.find(context);
  return found == contexts_.end() ? std::vector<SmallAllocation>() : std::exchange(found->second.put_off, {});
}

std::vector<uint64_t> ManagedAllocations::forget(uint64_t context) noexcept {
  std::vector<uint64_t> mapped;
  MutexLock lock(mutex_);
  auto found = contexts_.find(context);
  if (found == contexts_.end()) return mapped;
  mapped = std::move(found->second.mapped);
  contexts_.erase(found);
  return mapped;
}

}  // namespace gpuwire::client
