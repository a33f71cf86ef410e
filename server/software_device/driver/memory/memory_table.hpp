// Every range of memory that the device knows: its place, its owner and its access rights. Device addresses are host
// addresses, so one table serves copies, pointer queries and the accesses of kernels.
#pragma once

#include <atomic>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <vector>

#include <cuda.h>

namespace gpuwire::software_device {

class ManagedAdvice;

enum class MemoryKind : uint8_t {
  device,      // cuMemAlloc and its relatives, module variables
  pinned,      // cuMemAllocHost, cuMemHostAlloc
  registered,  // cuMemHostRegister: the program's memory
  managed,     // cuMemAllocManaged, managed variables
  mapped,      // cuMemMap
  heap,        // malloc() in device code: no pointer the host may use
};

inline constexpr int kDevicesMax = 32;

struct MemoryRange {
  uint64_t begin = 0;
  uint64_t bytes = 0;
  MemoryKind kind = MemoryKind::device;
  int device = 0;
  CUcontext context = nullptr;
  unsigned flags = 0;      // as given when it was allocated or registered
  uint64_t buffer_id = 0;  // unique over the process's life
  CUmemoryPool pool = nullptr;
  bool sync_memops = false;  // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, which managed memory has besides
  bool of_graph = false;     // allocated by the launches of graphs
  bool variable = false;     // of a module: not the program's to free
  bool leaving = false;      // freed in a stream that has not got there: no longer counted as used in its pool
  // Which devices' kernels may touch it, a bit per ordinal; contexts with peer access to `device` may as well.
  uint32_t readable_by = ~0u;
  uint32_t writable_by = ~0u;
  std::shared_ptr<ManagedAdvice> advice;  // of managed memory
  std::shared_ptr<void> backing;          // frees the memory with the last reference

  uint64_t end() const noexcept { return begin + bytes; }
  // Of a pool, which graphs have one of their own of: it belongs to no context.
  bool in_pool() const noexcept { return pool != nullptr || of_graph; }
};

// Safe to use from every thread.
class MemoryTable {
 public:
  // Gives the range its buffer id and returns that; 0 when it overlaps another.
  uint64_t insert(MemoryRange range);
  // Removes the range that begins there; nothing when there is none, or `matches` (if set) says no.
  template <typename Predicate>
  std::optional<MemoryRange> remove(uint64_t begin, Predicate&& matches) {
    const std::unique_lock lock(mutex_);
    const auto found = ranges_.find(begin);
    if (found == ranges_.end() || !matches(found->second)) {
      return std::nullopt;
    }
    auto out = std::move(found->second);
    ranges_.erase(found);
    ++generation_;
    return out;
  }
  // Removes that very range: another may have taken its place. The buffer id is the one it was given on insertion.
  std::optional<MemoryRange> remove_buffer(uint64_t begin, uint64_t buffer_id) {
    return remove(begin, [&](const MemoryRange& range) { return range.buffer_id == buffer_id; });
  }
  // The range that holds the address.
  std::optional<MemoryRange> find(uint64_t address) const;
  // Calls `look` for the range that holds the address, under the lock, without sharing in its backing; false when there
  // is none.
  template <typename Visit>
  bool inspect(uint64_t address, Visit&& visit) const {
    const std::shared_lock lock(mutex_);
    const auto next = ranges_.upper_bound(address);
    if (next == ranges_.begin() || std::prev(next)->second.end() <= address) {
      return false;
    }
    visit(std::prev(next)->second);
    return true;
  }
  // Calls `change` for the range that begins there, under the lock; false when there is none.
  template <typename Change>
  bool update(uint64_t begin, Change&& change) {
    const std::unique_lock lock(mutex_);
    const auto found = ranges_.find(begin);
    if (found == ranges_.end()) {
      return false;
    }
    change(found->second);
    ++generation_;
    return true;
  }
  // Whether all of [address, address + bytes) lies in ranges that a copy may touch; adjacent ones count as one. Copies
  // cross devices and write constants, so only mapped ranges without access for any device, and the device's heap, are
  // out of bounds.
  bool covers(uint64_t address, uint64_t bytes) const;
  // Begins of the ranges for which `matches` holds.
  template <typename Predicate>
  std::vector<uint64_t> select(Predicate&& matches) const {
    const std::shared_lock lock(mutex_);
    std::vector<uint64_t> out;
    for (const auto& [begin, range] : ranges_) {
      if (matches(range)) {
        out.push_back(begin);
      }
    }
    return out;
  }
  // Changes whenever a range is removed or its access is changed. Acquire pairs with the increment under the lock: a
  // thread that reads the new number and then asks again sees the present table.
  uint64_t generation() const noexcept { return generation_.load(std::memory_order_acquire); }

 private:
  mutable std::shared_mutex mutex_;
  std::map<uint64_t, MemoryRange> ranges_;
  std::atomic<uint64_t> generation_{1};
  uint64_t next_buffer_id_ = 1;
};

}  // namespace gpuwire::software_device
