// The two ends of one ring of bytes in memory that another process also writes (shared_memory_layout.hpp).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "protocol/transport/shared_memory_layout.hpp"

namespace gpuwire::transport::shared_memory {

// The fault of an index that the other end has written. Sticky: an end that has found one no longer uses the ring.
enum class Damage : uint8_t { none, backwards, beyond };
constexpr const char* text_of(Damage damage) {
  switch (damage) {
    case Damage::none: return "";
    case Damage::backwards: return "the shared memory is damaged: the other side's index has run backwards";
    case Damage::beyond: return "the shared memory is damaged: the other side's index lies beyond the ring";
  }
  return "";
}

inline constexpr size_t kLineBytes = 64;
// In an empty ring these bytes hold a short frame, or its beginning. A reader that finds the ring empty prefetches
// these lines, so that they arrive together with the index when both are written. Without the prefetch they arrived
// after the index, and the round trip of a short frame took a third longer.
inline constexpr size_t kWatchedBytes = 2 * kLineBytes;

// Requests ownership of the cache line at `at` before the line is written. The line is in the reader's cache, and a
// store that waits for the line delays the next stores.
inline void fetch_for_writing([[maybe_unused]] void* at) noexcept {
#if defined(__x86_64__)
  // Not __builtin_prefetch: on the oldest x86-64 processors it compiles to a prefetch for reading.
  asm volatile("prefetchw %0" : : "m"(*static_cast<std::byte*>(at)));
#endif
}

// Threads: one at a time writes; any thread may call writable().
class RingWriter {
 public:
  RingWriter(RingIndices& shared, std::byte* data, uint32_t bytes) : shared_(shared), data_(data), bytes_(bytes) {}

  // Returns the maximum for put(); 0 after damage.
  size_t room() noexcept {
    uint64_t read = shared_.read.load(std::memory_order_acquire);
    if (read < seen_) damage_ = Damage::backwards;
    if (read > written()) damage_ = Damage::beyond;
    if (damage_ != Damage::none) return 0;
    seen_ = read;
    return bytes_ - size_t(written() - read);
  }
  void put(std::span<const std::byte> from) noexcept {
    uint64_t at = written();
    size_t place = size_t(at) & (bytes_ - 1);
    fetch_for_writing(&shared_.written);
    for (size_t line = 0; line < kWatchedBytes; line += kLineBytes) fetch_for_writing(data_at(at + line));
    size_t first = std::min(from.size(), bytes_ - place);
    std::memcpy(data_ + place, from.data(), first);
    if (first < from.size()) std::memcpy(data_, from.data() + first, from.size() - first);
    written_.store(at + from.size(), std::memory_order_relaxed);
    shared_.written.store(at + from.size(), std::memory_order_seq_cst);
    // The next frame is rarely longer.
    for (size_t line = kWatchedBytes + kLineBytes; line < kFetchedAheadBytes; line += kLineBytes)
      fetch_for_writing(data_at(at + from.size() + line));
  }
  void finish() noexcept { shared_.finished.store(1, std::memory_order_seq_cst); }
  Damage damage() const noexcept { return damage_; }

  // Returns true if there is so much room that a wake-up is useful, which a reader announces (notify_every()). Also
  // returns true if the index is invalid, which room() then reports.
  bool writable() const noexcept {
    uint64_t used = written() - shared_.read.load(std::memory_order_seq_cst);
    return used > bytes_ || bytes_ - used >= notify_every(bytes_);
  }
  // Returns the number of bytes written.
  uint64_t position() const noexcept { return written(); }
  // Called before a sleep for room. The caller then calls writable() once more.
  void about_to_sleep() noexcept { shared_.writer_sleeps.store(1, std::memory_order_seq_cst); }
  // Called after put() and finish(). Returns true if the reader has announced that it sleeps and has to be woken.
  bool must_notify_reader() noexcept {
    return shared_.reader_sleeps.load(std::memory_order_seq_cst) != 0 &&
           shared_.reader_sleeps.exchange(0, std::memory_order_seq_cst) != 0;
  }

 private:
  static constexpr size_t kFetchedAheadBytes = 8 * kLineBytes;

  std::byte* data_at(uint64_t index) const noexcept { return data_ + (size_t(index) & (bytes_ - 1)); }
  uint64_t written() const noexcept { return written_.load(std::memory_order_relaxed); }

  RingIndices& shared_;
  std::byte* const data_;
  const size_t bytes_;
  // The private index; the shared one is a copy of it. The writing thread stores it, and a lock hands that role from
  // thread to thread; other threads only compare with it.
  std::atomic<uint64_t> written_{0};
  // The reader's index when it was last read.
  uint64_t seen_ = 0;
  Damage damage_ = Damage::none;
};

// Threads: one at a time reads; any thread may call readable().
class RingReader {
 public:
  RingReader(RingIndices& shared, const std::byte* data, uint32_t bytes)
      : shared_(shared), data_(data), bytes_(bytes) {}

  // Returns the maximum for take(); 0 after damage.
  size_t available() noexcept {
    uint64_t written = shared_.written.load(std::memory_order_acquire);
    if (written < seen_) damage_ = Damage::backwards;
    if (written - read() > bytes_ && written >= seen_) damage_ = Damage::beyond;
    if (damage_ != Damage::none) return 0;
    seen_ = written;
    if (written == read()) {
      for (size_t line = 0; line < kWatchedBytes; line += kLineBytes)
        __builtin_prefetch(data_ + (size_t(written + line) & (bytes_ - 1)));
    }
    return size_t(written - read());
  }
  // The other end may change the bytes at any time, so they are checked only after they have been copied to `to`.
  void take(std::span<std::byte> to) noexcept {
    uint64_t at = read();
    size_t place = size_t(at) & (bytes_ - 1);
    size_t first = std::min(to.size(), bytes_ - place);
    std::memcpy(to.data(), data_ + place, first);
    if (first < to.size()) std::memcpy(to.data() + first, data_, to.size() - first);
    at += to.size();
    read_.store(at, std::memory_order_relaxed);
    notifies_ = at - notified_ >= notify_every(bytes_);
    if (!notifies_) return;
    notified_ = at;
    shared_.read.store(at, std::memory_order_seq_cst);
  }
  // Returns true if the other end has announced that no bytes follow the present ones.
  bool finished() const noexcept { return shared_.finished.load(std::memory_order_seq_cst) != 0; }
  Damage damage() const noexcept { return damage_; }

  // Returns the number of bytes read.
  uint64_t position() const noexcept { return read(); }
  // Also returns true if the index is invalid, which available() then reports.
  bool readable() const noexcept { return shared_.written.load(std::memory_order_seq_cst) != read() || finished(); }
  // Called before a sleep for bytes. The caller then calls readable() once more.
  void about_to_sleep() noexcept { shared_.reader_sleeps.store(1, std::memory_order_seq_cst); }
  // Called after take(). Returns true if the writer has announced that it sleeps, and there is more room than before.
  bool must_notify_writer() noexcept {
    return notifies_ && shared_.writer_sleeps.load(std::memory_order_seq_cst) != 0 &&
           shared_.writer_sleeps.exchange(0, std::memory_order_seq_cst) != 0;
  }

 private:
  uint64_t read() const noexcept { return read_.load(std::memory_order_relaxed); }

  RingIndices& shared_;
  const std::byte* const data_;
  const size_t bytes_;
  // The private index; the shared one is an earlier copy of it. The reading thread stores it, and that role is handed
  // from thread to thread; other threads only compare with it.
  std::atomic<uint64_t> read_{0};
  // The last value of the shared index.
  uint64_t notified_ = 0;
  // The last take() has changed the shared index.
  bool notifies_ = false;
  // The writer's index when it was last read.
  uint64_t seen_ = 0;
  Damage damage_ = Damage::none;
};

}  // namespace gpuwire::transport::shared_memory
