// MemoryTable lists every range of memory that the device knows, with its owner and its access rights. Device addresses
// are host addresses, so one table serves copies, pointer queries and the accesses of kernels.
#pragma once

#include <atomic>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <cuda.h>

#include "protocol/threads/mutex.hpp"

namespace gpuwire::software_device {

class ManagedAdvice;

enum class MemoryKind : uint8_t {
  device,      // cuMemAlloc and similar functions, module variables
  pinned,      // cuMemAllocHost, cuMemHostAlloc
  registered,  // cuMemHostRegister: the program's own memory
  managed,     // cuMemAllocManaged, managed variables
  mapped,      // cuMemMap
  heap,        // malloc() in device code: the host may not use the pointer
};

inline constexpr int kDevicesMax = 32;

struct MemoryRange {
  uint64_t begin = 0;
  uint64_t bytes = 0;
  MemoryKind kind = MemoryKind::device;
  int device = 0;
  CUcontext context = nullptr;
  unsigned flags = 0;      // the flags of its allocation or registration
  uint64_t buffer_id = 0;  // unique in the process
  CUmemoryPool pool = nullptr;
  bool sync_memops = false;  // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS as set; managed memory always has it
  bool of_graph = false;     // allocated by launches of graphs
  bool variable = false;     // of a module; the program may not free it
  // Freed in stream order, but the stream has not reached the free yet. The pool no longer counts it as used.
  bool leaving = false;
  // The devices whose kernels may access the range, a bit per ordinal. Contexts with peer access to `device` may, too.
  uint32_t readable_by = ~0u;
  uint32_t writable_by = ~0u;
  std::shared_ptr<ManagedAdvice> advice;  // of managed memory
  std::shared_ptr<void> backing;          // frees the memory with the last reference

  uint64_t end() const noexcept { return begin + bytes; }
  // Returns whether the range belongs to a pool (graphs have one of their own), and so to no context.
  bool in_pool() const noexcept { return pool != nullptr || of_graph; }
};

// Thread: any.
class MemoryTable {
 public:
  // Assigns a buffer id to the range and returns it; 0 if the range overlaps another.
  uint64_t insert(MemoryRange range);
  // Removes the range that begins at `begin`. Returns nothing if there is none, or if `matches` is set and returns
  // false.
  template <typename Predicate>
  std::optional<MemoryRange> remove(uint64_t begin, Predicate&& matches) {
    const ExclusiveLock lock(mutex_);
    const auto found = ranges_.find(begin);
    if (found == ranges_.end() || !matches(found->second)) {
      return std::nullopt;
    }
    auto out = std::move(found->second);
    ranges_.erase(found);
    ++generation_;
    return out;
  }
  // Removes exactly that range, because another may have taken its place. `buffer_id` is the id from its insertion.
  std::optional<MemoryRange> remove_buffer(uint64_t begin, uint64_t buffer_id) {
    return remove(begin, [&](const MemoryRange& range) { return range.buffer_id == buffer_id; });
  }
  // Returns the range that contains the address.
  std::optional<MemoryRange> find(uint64_t address) const;
  // Calls `look` under the lock for the range that contains the address, without sharing its backing. Returns false if
  // there is none.
  template <typename Visit>
  bool inspect(uint64_t address, Visit&& visit) const {
    const SharedLock lock(mutex_);
    const auto next = ranges_.upper_bound(address);
    if (next == ranges_.begin() || std::prev(next)->second.end() <= address) {
      return false;
    }
    visit(std::prev(next)->second);
    return true;
  }
  // Calls `change` under the lock for the range that begins at `begin`. Returns false if there is none.
  template <typename Change>
  bool update(uint64_t begin, Change&& change) {
    const ExclusiveLock lock(mutex_);
    const auto found = ranges_.find(begin);
    if (found == ranges_.end()) {
      return false;
    }
    change(found->second);
    ++generation_;
    return true;
  }
  // Returns whether all of [address, address + bytes) is in ranges that a copy may access; adjacent ranges count as
  // one. Copies cross devices and write constants, so only mapped ranges without access for any device, and the
  // device's heap, are excluded.
  bool covers(uint64_t address, uint64_t bytes) const;
  // Returns the begins of the ranges for which `matches` returns true.
  template <typename Predicate>
  std::vector<uint64_t> select(Predicate&& matches) const {
    const SharedLock lock(mutex_);
    std::vector<uint64_t> out;
    for (const auto& [begin, range] : ranges_) {
      if (matches(range)) {
        out.push_back(begin);
      }
    }
    return out;
  }
  // Returns a number that changes whenever a range is removed or its access is changed. The acquire pairs with the
  // increment under the lock: a thread that reads the new number and then looks up again sees the present table.
  uint64_t generation() const noexcept { return generation_.load(std::memory_order_acquire); }

 private:
  mutable SharedMutex mutex_;
  std::map<uint64_t, MemoryRange> ranges_ GUARDED_BY(mutex_);
  std::atomic<uint64_t> generation_{1};
  uint64_t next_buffer_id_ GUARDED_BY(mutex_) = 1;
};

}  // namespace gpuwire::software_device
