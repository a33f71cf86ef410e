#include "server/software_device/driver/memory/allocation.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "server/software_device/driver/call/driver_state.hpp"
#include "server/software_device/driver/managed_memory/managed_advice.hpp"

namespace gpuwire::software_device {
namespace {

// From this size on, pages are mapped for one range only and returned to the system when it is freed.
constexpr uint64_t kMappedFromBytes = 256 * 1024;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// A sanitizer's heap has the same addresses in every process, so a client's process could not reserve the addresses of
// a worker's memory.
constexpr bool kHeapServes = false;
#else
constexpr bool kHeapServes = true;
#endif

bool is_mapped(uint64_t bytes, uint64_t alignment, bool own_pages) {
  return (bytes >= kMappedFromBytes || own_pages || !kHeapServes) && alignment <= kPageBytes;
}

void* take_memory(uint64_t bytes, uint64_t alignment, bool own_pages) {
  if (is_mapped(bytes, alignment, own_pages)) {
    void* const pages =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return pages == MAP_FAILED ? nullptr : pages;
  }
  // No program may read the process's earlier content of the memory.
  void* const memory = std::aligned_alloc(alignment, bytes);
  if (memory != nullptr) std::memset(memory, 0, bytes);
  return memory;
}

struct Taken {
  void* memory = nullptr;
  uint64_t bytes = 0;
  bool mapped = false;
};

void give_back(const Taken& taken) {
  if (taken.mapped) {
    munmap(taken.memory, taken.bytes);
  } else {
    std::free(taken.memory);
  }
}

// Delays the reuse of freed addresses. Device and host memory come from one heap here, and a use after the free should
// fail, as on a device with a memory of its own.
class Freed {
 public:
  void add(Taken taken) {
    {
      const std::lock_guard lock(mutex_);
      std::swap(taken, kept_[next_++ % kept_.size()]);
    }
    if (taken.memory != nullptr) {
      give_back(taken);
    }
  }

 private:
  std::mutex mutex_;
  std::array<Taken, 32> kept_;  // each of less than kMappedFromBytes
  size_t next_ = 0;
};

// Never destroyed.
Freed& freed() {
  static auto* const kept = new Freed;
  return *kept;
}

void give_memory(const Taken& taken) {
  if (taken.bytes < kMappedFromBytes) {
    freed().add(taken);
  } else {
    give_back(taken);
  }
}

}  // namespace

tl::expected<uint64_t, CUresult> allocate_range(MemoryRange range, Device& device, uint64_t alignment_bytes) {
  const uint64_t alignment = std::bit_ceil(std::max(alignment_bytes, kAllocationAlignment));
  if (range.bytes > UINT64_MAX - kPageBytes - alignment) {
    return tl::unexpected(CUDA_ERROR_OUT_OF_MEMORY);
  }
  // A client maps the pages of managed memory, so they contain nothing else.
  const bool own_pages = range.kind == MemoryKind::managed;
  const uint64_t unit = std::max(alignment, range.bytes >= kMappedFromBytes || own_pages ? kPageBytes : 0);
  const uint64_t taken = std::max((range.bytes + unit - 1) / unit * unit, unit);
  // Charges the requested bytes: the rounding to this process's pages is not the device's memory.
  // Managed memory for which the device has no room stays with the host.
  uint64_t charged = range.kind == MemoryKind::device || range.kind == MemoryKind::managed ? range.bytes : 0;
  if (!device.charge(charged)) {
    if (range.kind != MemoryKind::managed) {
      return tl::unexpected(CUDA_ERROR_OUT_OF_MEMORY);
    }
    charged = 0;
  }
  void* const memory = take_memory(taken, alignment, own_pages);
  if (memory == nullptr) {
    device.discharge(charged);
    return tl::unexpected(CUDA_ERROR_OUT_OF_MEMORY);
  }
  const bool mapped = is_mapped(taken, alignment, own_pages);
  range.backing = std::shared_ptr<void>(memory, [taken, mapped, charged, &device](void* pages) {
    driver().checkpoint.storage.remove(pages);
    give_memory({pages, taken, mapped});
    device.discharge(charged);
  });
  if (range.kind == MemoryKind::device) {
    driver().checkpoint.storage.add(memory, {.kind = mapped ? StoragePiece::Kind::pages : StoragePiece::Kind::heap,
                                             .memory = memory,
                                             .mapped_bytes = taken,
                                             .bytes = range.bytes,
                                             .device = &device});
  }
  if (range.kind == MemoryKind::managed) {
    range.advice = std::make_shared<ManagedAdvice>();
  }
  range.begin = reinterpret_cast<uint64_t>(memory);
  const uint64_t begin = range.begin;
  if (driver().memory.insert(std::move(range)) == 0) {
    return tl::unexpected(CUDA_ERROR_OUT_OF_MEMORY);  // the program has registered host memory there and unmapped it
  }
  return begin;
}

void leave_pool(const MemoryRange& range) noexcept {
  const auto pool = range.pool != nullptr ? driver().pools.find(range.pool) : nullptr;
  if (pool != nullptr) {
    pool->reserved.bytes.fetch_sub(range.bytes, std::memory_order_relaxed);
    if (!range.leaving) {
      pool->used.bytes.fetch_sub(range.bytes, std::memory_order_relaxed);
    }
  }
}

tl::expected<std::shared_ptr<void>, CUresult> take_storage(uint64_t bytes, Device& device) {
  const uint64_t taken = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (taken < bytes || !device.charge(bytes)) {
    return tl::unexpected(CUDA_ERROR_OUT_OF_MEMORY);
  }
  void* const pages = mmap(nullptr, taken, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) {
    device.discharge(bytes);
    return tl::unexpected(CUDA_ERROR_OUT_OF_MEMORY);
  }
  driver().checkpoint.storage.add(pages, {.memory = pages, .mapped_bytes = taken, .bytes = bytes, .device = &device});
  return std::shared_ptr<void>(pages, [taken, bytes, &device](void* memory) {
    driver().checkpoint.storage.remove(memory);
    munmap(memory, taken);
    device.discharge(bytes);
  });
}

}  // namespace gpuwire::software_device
