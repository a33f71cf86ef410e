// The buffers that CUPTI fills with records. CUPTI requests and returns them on any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "protocol/threads/mutex.hpp"

namespace gpuwire::server::cupti {

// One object in a process, because CUPTI's callbacks have no argument for it; never destroyed, because CUPTI may hold
// buffers until the process ends. Takes a leaf lock.
class Buffers {
 public:
  struct Filled {
    uint8_t* data = nullptr;
    // Valid ones.
    size_t bytes = 0;
  };

  static Buffers& of_process();

  // CUPTI's callbacks. Null: all buffers are in use, and CUPTI drops records.
  uint8_t* give() noexcept;
  void take(uint8_t* data, size_t valid_bytes) noexcept;

  // Returns the oldest filled buffer that was not read yet; call release() after reading.
  std::vector<Filled> filled();
  bool any_filled() const { return count_.load(std::memory_order_relaxed) != 0; }
  void release(const Filled& read) noexcept;

 private:
  Buffers() = default;

  Mutex mutex_;
  std::vector<uint8_t*> all_ GUARDED_BY(mutex_), free_ GUARDED_BY(mutex_);
  std::vector<Filled> filled_ GUARDED_BY(mutex_);
  // The size of filled_; a hint for reads without the lock.
  std::atomic<size_t> count_{0};
};

}  // namespace gpuwire::server::cupti
