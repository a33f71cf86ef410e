#include "client_stub/session/kept_bulk.hpp"

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

}  // namespace

KeptBulk::KeptBulk() : blocks_(std::make_shared<Blocks>()) {}

KeptBulk::Blocks::~Blocks() {
  for (std::byte* block : free) {
    while (block) {
      std::byte* next = next_of(block);
      ::operator delete(block);
      block = next;
    }
  }
}

void KeptBulk::Blocks::put_back(std::byte* block, size_t number) noexcept {
  std::lock_guard lock(mutex);
  std::memcpy(block, &free[number], sizeof free[number]);
  free[number] = block;
}

bool KeptBulk::Blocks::make_room(size_t bytes) noexcept {
  for (size_t number = 0; held_bytes + bytes > kKeptBulkBytesMax && number < kClasses; ++number) {
    while (free[number] && held_bytes + bytes > kKeptBulkBytesMax) {
      std::byte* block = free[number];
      free[number] = next_of(block);
      held_bytes -= kKeptBlockBytesMin << number;
      ::operator delete(block);
    }
  }
  return held_bytes + bytes <= kKeptBulkBytesMax;
}

std::shared_ptr<std::byte> KeptBulk::take(size_t bytes) noexcept {
  if (bytes > kKeptBlockBytesMax) return nullptr;
  size_t number = bytes <= kKeptBlockBytesMin ? 0 : size_t(std::bit_width((bytes - 1) / kKeptBlockBytesMin));
  size_t block_bytes = kKeptBlockBytesMin << number;
  std::byte* block = nullptr;
  {
    std::lock_guard lock(blocks_->mutex);
    if (blocks_->free[number]) {
      block = blocks_->free[number];
      blocks_->free[number] = next_of(block);
    } else {
      if (!blocks_->make_room(block_bytes)) return nullptr;
      block = static_cast<std::byte*>(::operator new(block_bytes, std::nothrow));
      if (!block) return nullptr;
      blocks_->held_bytes += block_bytes;
    }
  }
  try {
    // When the last reference cannot be made, the deleter has put the block back already.
    return {block, [blocks = blocks_, number](std::byte* own) { blocks->put_back(own, number); }};
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

size_t KeptBulk::held_bytes() const noexcept {
  std::lock_guard lock(blocks_->mutex);
  return blocks_->held_bytes;
}

}  // namespace gpuwire::client
