#include "client_stub/session/cached_bulk.hpp"

#include <sys/mman.h>

#include <bit>
#include <cstring>
#include <new>

namespace gpuwire::client {
namespace {

std::byte* next_of(const std::byte* block) noexcept {
  std::byte* next;
  std::memcpy(&next, block, sizeof next);
  return next;
}

// mmap() instead of malloc(): a signal handler of the program may exit in the middle of it, and the exit handlers,
// which allocate, would then wait for malloc()'s lock.
std::byte* map_block(size_t bytes) noexcept {
  void* block = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return block == MAP_FAILED ? nullptr : static_cast<std::byte*>(block);
}

}  // namespace

CachedBulk::CachedBulk() : blocks_(std::make_shared<Blocks>()) {}

CachedBulk::Blocks::~Blocks() {
  for (size_t number = 0; number < kClasses; ++number) {
    for (std::byte* block = free[number]; block;) {
      std::byte* next = next_of(block);
      munmap(block, kCachedBlockBytesMin << number);
      block = next;
    }
  }
}

void CachedBulk::Blocks::put_back(std::byte* block, size_t number) noexcept {
  MutexLock lock(mutex);
  std::memcpy(block, &free[number], sizeof free[number]);
  free[number] = block;
}

bool CachedBulk::Blocks::make_room(size_t bytes) noexcept {
  for (size_t number = 0; held_bytes + bytes > kCachedBulkBytesMax && number < kClasses; ++number) {
    while (free[number] && held_bytes + bytes > kCachedBulkBytesMax) {
      std::byte* block = free[number];
      free[number] = next_of(block);
      held_bytes -= kCachedBlockBytesMin << number;
      munmap(block, kCachedBlockBytesMin << number);
    }
  }
  return held_bytes + bytes <= kCachedBulkBytesMax;
}

std::shared_ptr<std::byte> CachedBulk::take(size_t bytes) noexcept {
  if (bytes > kCachedBlockBytesMax) return nullptr;
  size_t number = bytes <= kCachedBlockBytesMin ? 0 : size_t(std::bit_width((bytes - 1) / kCachedBlockBytesMin));
  size_t block_bytes = kCachedBlockBytesMin << number;
  std::byte* block = nullptr;
  {
    MutexLock lock(blocks_->mutex);
    if (blocks_->free[number]) {
      block = blocks_->free[number];
      blocks_->free[number] = next_of(block);
    } else {
      if (!blocks_->make_room(block_bytes)) return nullptr;
      block = map_block(block_bytes);
      if (!block) return nullptr;
      blocks_->held_bytes += block_bytes;
    }
  }
  try {
    // If the last reference cannot be made, the deleter has returned the block already.
    return {block, [blocks = blocks_, number](std::byte* own) { blocks->put_back(own, number); }};
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

size_t CachedBulk::held_bytes() const noexcept {
  MutexLock lock(blocks_->mutex);
  return blocks_->held_bytes;
}

}  // namespace gpuwire::client
