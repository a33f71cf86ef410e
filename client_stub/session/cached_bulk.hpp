// Copies of the program's bulk that a session holds until its server has acknowledged them, so that a call need not
// wait until they have been sent.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

// Bytes in the blocks of one session, including free blocks.
inline constexpr size_t kCachedBulkBytesMax = 64u << 20;
inline constexpr size_t kCachedBlockBytesMin = 128u << 10, kCachedBlockBytesMax = 16u << 20;

// Blocks whose sizes are powers of two. They are reused, because a fresh block costs a page fault every 4 KiB. Thread:
// any. Taking and releasing neither allocate nor make a system call, because they happen under the link's lock.
class CachedBulk {
 public:
  CachedBulk();
  CachedBulk(const CachedBulk&) = delete;
  CachedBulk& operator=(const CachedBulk&) = delete;

  // Returns at least `bytes` with undefined content. Null if `bytes` exceeds kCachedBlockBytesMax, if the bound of the
  // session is reached, or without memory.
  std::shared_ptr<std::byte> take(size_t bytes) noexcept;
  size_t held_bytes() const noexcept;

 private:
  // 128 KiB to 16 MiB.
  static constexpr size_t kClasses = 8;
  static_assert(kCachedBlockBytesMin << (kClasses - 1) == kCachedBlockBytesMax);

  // Lives as long as the last block in use.
  struct Blocks {
    ~Blocks();
    void put_back(std::byte* block, size_t number) noexcept;
    bool make_room(size_t bytes) noexcept REQUIRES(mutex);

    // A leaf.
    Mutex mutex;
    // Lists by class: a free block begins with the address of the next.
    std::array<std::byte*, kClasses> free GUARDED_BY(mutex){};
    size_t held_bytes GUARDED_BY(mutex) = 0;
  };
  const std::shared_ptr<Blocks> blocks_;
};

}  // namespace gpuwire::client
