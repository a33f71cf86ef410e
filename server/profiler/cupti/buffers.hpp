// The buffers that CUPTI fills with records: handed out and taken back on whatever thread it calls from.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "protocol/threads/mutex.hpp"

namespace gpuwire::server::cupti {

// One in a process, as CUPTI is, whose callbacks have no argument to pass it in; never destroyed, for CUPTI may have
// some of them as long as the process lives. Takes a leaf lock.
class Buffers {
 public:
  struct Filled {
    uint8_t* data = nullptr;
    size_t bytes = 0;  // valid ones
  };

  static Buffers& of_process();

  // CUPTI's callbacks. Null: as many as there may be are out; CUPTI drops records then.
  uint8_t* give() noexcept;
  void take(uint8_t* data, size_t valid_bytes) noexcept;

  // Filled and not read yet, oldest first; release() when it is read.
  std::vector<Filled> filled();
  bool any_filled() const { return count_.load(std::memory_order_relaxed) != 0; }
  void release(const Filled& read) noexcept;

 private:
  Buffers() = default;

  Mutex mutex_;
  std::vector<uint8_t*> all_ GUARDED_BY(mutex_), free_ GUARDED_BY(mutex_);
  std::vector<Filled> filled_ GUARDED_BY(mutex_);
  std::atomic<size_t> count_{0};  // of filled_; a hint for who looks without the lock
};

}  // namespace gpuwire::server::cupti
