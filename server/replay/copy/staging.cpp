#include "server/replay/copy/staging.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "server/driver_table.hpp"

namespace gpuwire::server {

namespace {

// Maps memory on a boundary of kStagingSlabBytes, so that the kernel can use large pages: pinning these is many times
// faster. Null: no memory.
std::byte* map_aligned(size_t bytes) {
  void* memory = mmap(nullptr, bytes + kStagingSlabBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto start = reinterpret_cast<uintptr_t>(memory);
  uintptr_t aligned = (start + kStagingSlabBytes - 1) / kStagingSlabBytes * kStagingSlabBytes;
  if (aligned != start) munmap(memory, aligned - start);
  if (uintptr_t behind = start + kStagingSlabBytes - aligned) munmap(reinterpret_cast<void*>(aligned + bytes), behind);
  madvise(reinterpret_cast<void*>(aligned), bytes, MADV_HUGEPAGE);
  return reinterpret_cast<std::byte*>(aligned);
}

}  // namespace

StagingBlock::~StagingBlock() {
  if (pool_) pool_->give(data_, capacity_, slab_);
}

StagingPool::StagingPool(const DriverTable& driver, HostMemory* account, size_t bytes_max, size_t urgent_bytes_max)
    : driver_(driver), account_(account), bytes_max_(bytes_max), urgent_bytes_max_(urgent_bytes_max) {}

StagingPool::~StagingPool() {
  for (Slab& slab : slabs_) {
    if (slab.data) end(slab, !abandoned_);
  }
}

size_t StagingPool::class_of(size_t bytes) {
  static_assert(kStagingBlockBytesMin << (kClasses - 1) == kStagingBlockBytesMax);
  size_t blocks = (bytes + kStagingBlockBytesMin - 1) / kStagingBlockBytesMin;
  return size_t(std::bit_width(blocks - 1));
}

StagingBlock StagingPool::take(size_t bytes, bool urgent) {
  StagingBlock block;
  if (bytes == 0 || bytes > kStagingBlockBytesMax) return block;
  MutexLock lock(mutex_);
  if (abandoned_) return block;
  size_t size_class = class_of(bytes);
  size_t limit = urgent ? urgent_bytes_max_ : bytes_max_;
  if (free_[size_class].empty() && !add_slab(size_class, limit)) {
    // Blocks of other sizes fill the pool: its unused slabs make room.
    release_unused_slabs();
    if (free_[size_class].empty() && !add_slab(size_class, limit)) return block;
  }
  FreeBlock free = free_[size_class].back();
  free_[size_class].pop_back();
  ++slabs_[free.slab].taken;
  ++taken_;
  block.pool_ = shared_from_this();
  block.data_ = free.data;
  block.capacity_ = kStagingBlockBytesMin << size_class;
  block.slab_ = free.slab;
  return block;
}

bool StagingPool::make(Slab& slab) const {
  slab.data = map_aligned(slab.bytes);
  if (!slab.data) return false;
  // If the memory cannot be pinned (the driver cannot, or the limit on locked memory is reached), copies still work,
  // only slower.
  slab.pinned = driver_.cuMemHostRegister_v2 && driver_.cuMemHostUnregister &&
                driver_.cuMemHostRegister_v2(slab.data, slab.bytes, CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS;
  slab.charge = HostCharge(account_);
  if (slab.pinned || slab.charge.grow(slab.bytes)) return true;
  munmap(slab.data, slab.bytes);
  return false;
}

void StagingPool::end(Slab& slab, bool registered) const {
  if (slab.pinned && registered) driver_.cuMemHostUnregister(slab.data);
  munmap(slab.data, slab.bytes);
}

bool StagingPool::add_slab(size_t size_class, size_t limit) {
  size_t block_bytes = kStagingBlockBytesMin << size_class;
  Slab slab{.bytes = std::max(block_bytes, kStagingSlabBytes), .block_bytes = block_bytes};
  const size_t bytes = slab.bytes;
  if (slab_bytes_ + bytes > limit) return false;
  slab_bytes_ += bytes;
  mutex_.unlock();
  bool made = make(slab);
  mutex_.lock();
  if (made && abandoned_) {  // the context has ended meanwhile, and the registration with it
    end(slab, false);
    made = false;
  }
  if (made) add_blocks(std::move(slab), size_class);
  else slab_bytes_ -= bytes;
  return made;
}

void StagingPool::add_blocks(Slab slab, size_t size_class) {
  auto place = std::find_if(slabs_.begin(), slabs_.end(), [](const Slab& other) { return !other.data; });
  if (place == slabs_.end()) place = slabs_.insert(place, Slab{});
  size_t index = size_t(place - slabs_.begin());
  for (size_t offset = slab.bytes; offset >= slab.block_bytes; offset -= slab.block_bytes) {
    free_[size_class].push_back({slab.data + offset - slab.block_bytes, index});
  }
  *place = std::move(slab);
}

void StagingPool::give(std::byte* data, size_t capacity, size_t slab) {
  MutexLock lock(mutex_);
  free_[class_of(capacity)].push_back({data, slab});
  --slabs_[slab].taken;
  --taken_;
}

void StagingPool::release_unused_slabs() {
  for (auto& blocks : free_) {
    std::erase_if(blocks, [&](const FreeBlock& block) REQUIRES(mutex_) { return slabs_[block.slab].taken == 0; });
  }
  std::vector<Slab> unused;
  for (Slab& slab : slabs_) {
    if (slab.data && slab.taken == 0) unused.push_back(std::exchange(slab, Slab{}));
  }
  if (unused.empty()) return;
  const bool registered = !abandoned_;
  size_t bytes = 0;
  mutex_.unlock();
  for (Slab& slab : unused) {
    end(slab, registered);
    bytes += slab.bytes;
  }
  mutex_.lock();
  slab_bytes_ -= bytes;
}

void StagingPool::abandon() {
  MutexLock lock(mutex_);
  release_unused_slabs();
  abandoned_ = true;
}

size_t StagingPool::slab_bytes() const {
  MutexLock lock(mutex_);
  return slab_bytes_;
}

size_t StagingPool::taken_blocks() const {
  MutexLock lock(mutex_);
  return taken_;
}

}  // namespace gpuwire::server
