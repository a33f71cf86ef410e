// The server's staging memory for copies: pinned, so that the device and the network use it at the same time.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "protocol/threads/mutex.hpp"
#include "server/base/host_memory.hpp"

namespace gpuwire::server {

struct DriverTable;
class StagingPool;

// The smallest and the largest block; blocks are powers of two.
inline constexpr size_t kStagingBlockBytesMin = 64u << 10;
inline constexpr size_t kStagingBlockBytesMax = 64u << 20;
// Smaller blocks are cut from slabs of this size, since pinning costs tens of microseconds whatever the size.
inline constexpr size_t kStagingSlabBytes = 2u << 20;
// The most pinned memory of one context, and the most that the context may take after it waited for free blocks in vain
// (StagingPool::take with `urgent`).
inline constexpr size_t kStagingBytesMax = 256u << 20;
inline constexpr size_t kStagingUrgentBytesMax = 1024u << 20;

// A block of staging memory. Its destructor returns it to its pool. An empty block has no memory.
class StagingBlock {
 public:
  StagingBlock() = default;
  StagingBlock(StagingBlock&& other) noexcept { swap(other); }
  StagingBlock& operator=(StagingBlock&& other) noexcept {
    StagingBlock(std::move(other)).swap(*this);
    return *this;
  }
  ~StagingBlock();
  std::byte* data() const { return data_; }
  size_t capacity() const { return capacity_; }
  explicit operator bool() const { return data_ != nullptr; }
  void swap(StagingBlock& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(data_, other.data_);
    std::swap(capacity_, other.capacity_);
    std::swap(slab_, other.slab_);
  }

 private:
  friend class StagingPool;
  std::shared_ptr<StagingPool> pool_;
  std::byte* data_ = nullptr;
  size_t capacity_ = 0;
  size_t slab_ = 0;
};

// Any thread; the pool's context is current on a thread that calls take(). The process owns the memory and only
// registers it with the driver, so that a block can still be read after its context has died. No lock is held while
// memory is registered or unregistered: the driver may then wait for a stream that stands at a function of the client,
// and the client's answer may have to wait until a block is returned.
class StagingPool : public std::enable_shared_from_this<StagingPool> {
 public:
  // `account`: is charged for memory that is not pinned, since the driver's ledger counts pinned memory; outlives the
  // pool; null: nothing is charged.
  explicit StagingPool(const DriverTable& driver, HostMemory* account = nullptr, size_t bytes_max = kStagingBytesMax,
                       size_t urgent_bytes_max = kStagingUrgentBytesMax);
  ~StagingPool();

  // Returns a block of at least `bytes` (1 .. kStagingBlockBytesMax). The block is empty if the bound is reached or the
  // system has no memory.
  StagingBlock take(size_t bytes, bool urgent = false);
  // Unregisters and releases the free blocks; taken blocks are released when they are returned, without the driver.
  // Called before the context ends; take() returns no block afterwards.
  void abandon();

  size_t slab_bytes() const;
  size_t taken_blocks() const;

 private:
  friend class StagingBlock;
  struct Slab {
    std::byte* data = nullptr;
    size_t bytes = 0;
    size_t block_bytes = 0;
    size_t taken = 0;
    bool pinned = false;
    // The charge of a slab that is not pinned.
    HostCharge charge;
  };
  struct FreeBlock {
    std::byte* data;
    size_t slab;
  };
  static constexpr size_t kClasses = 11;
  static size_t class_of(size_t bytes);

  void give(std::byte* data, size_t capacity, size_t slab);
  // Both functions release the lock temporarily. add_slab() returns true if there is a free block of the class.
  bool add_slab(size_t size_class, size_t limit) REQUIRES(mutex_);
  void release_unused_slabs() REQUIRES(mutex_);
  void add_blocks(Slab slab, size_t size_class) REQUIRES(mutex_);
  // Precondition of both: no list has the slab.
  bool make(Slab& slab) const;
  void end(Slab& slab, bool registered) const;

  const DriverTable& driver_;
  HostMemory* const account_;
  const size_t bytes_max_;
  const size_t urgent_bytes_max_;
  mutable Mutex mutex_;
  // An empty entry is free to be used again.
  std::vector<Slab> slabs_ GUARDED_BY(mutex_);
  std::vector<FreeBlock> free_[kClasses] GUARDED_BY(mutex_);
  // Includes slabs that are being made or ended.
  size_t slab_bytes_ GUARDED_BY(mutex_) = 0;
  size_t taken_ GUARDED_BY(mutex_) = 0;
  bool abandoned_ GUARDED_BY(mutex_) = false;
};

}  // namespace gpuwire::server
