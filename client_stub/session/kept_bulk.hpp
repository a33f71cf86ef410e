// Copies of the program's bulk that a session holds until its server has acknowledged them, so that a call need not
// wait until they have been sent.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>

namespace gpuwire::client {

// Bytes in the blocks of one session, free ones included.
inline constexpr size_t kKeptBulkBytesMax = 64u << 20;
inline constexpr size_t kKeptBlockBytesMin = 512u << 10, kKeptBlockBytesMax = 16u << 20;

// Blocks of sizes that are powers of two, which are used again: a fresh one costs a page fault every 4 KiB. Any thread
// may take one, and let one go: that allocates nothing and makes no system call, because it happens under the link's
// lock.
class KeptBulk {
 public:
  KeptBulk();
  KeptBulk(const KeptBulk&) = delete;
  KeptBulk& operator=(const KeptBulk&) = delete;

  // At least `bytes`, with any content. Null: more than kKeptBlockBytesMax were asked for, so much is held already, or
  // there is no memory.
  std::shared_ptr<std::byte> take(size_t bytes) noexcept;
  size_t held_bytes() const noexcept;

 private:
  static constexpr size_t kClasses = 6;  // 512 KiB to 16 MiB
  static_assert(kKeptBlockBytesMin << (kClasses - 1) == kKeptBlockBytesMax);

  // Lives as long as the last block that somebody holds.
  struct Blocks {
    ~Blocks();
    void put_back(std::byte* block, size_t number) noexcept;
    bool make_room(size_t bytes) noexcept;  // with the lock

    std::mutex mutex;                         // a leaf; guards what follows
    std::array<std::byte*, kClasses> free{};  // lists by class: a free block begins with the address of the next
    size_t held_bytes = 0;
  };
  const std::shared_ptr<Blocks> blocks_;
};

}  // namespace gpuwire::client
