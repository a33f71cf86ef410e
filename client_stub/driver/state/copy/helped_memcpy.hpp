// A memory copy by one thread with a few helpers. The copy is cut into slices, and each free thread takes the next one.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "protocol/threads/condition.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

// Small enough that a thread which loses its core delays little, and that written bytes are still in the cache when the
// device reads them; large enough that taking a slice costs little.
inline constexpr size_t kSliceBytes = 256u << 10;
// Copies that have begun and are not done.
inline constexpr size_t kMemcpyJobsMax = 8;

// On one thread, for one call of the program: its helpers end with it.
class HelpedMemcpy {
 public:
  // `helpers`: threads beside the caller's, which are started by the first copy. With fewer, or none, it takes longer.
  explicit HelpedMemcpy(unsigned helpers) : helpers_(helpers) {}
  ~HelpedMemcpy();
  HelpedMemcpy(const HelpedMemcpy&) = delete;
  HelpedMemcpy& operator=(const HelpedMemcpy&) = delete;

  // Begins a copy; its number. At most kMemcpyJobsMax are not done, and the memory stays until it is.
  uint64_t begin(void* to, const void* from, size_t bytes) noexcept;
  // Copies a slice of the oldest that has one left. False: there is none.
  bool help() noexcept;
  bool is_done(uint64_t job) const noexcept;
  // Helps until it is done.
  void finish(uint64_t job) noexcept;
  // Will the slices of the current copies soon run out for this many threads?
  bool wants_more() const noexcept { return slices_left_.load(std::memory_order_relaxed) <= helpers_; }

 private:
  struct Job {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    // Bytes of slices that somebody has taken.
    size_t bytes = 0, taken = 0;
    // Slices that are not copied.
    size_t unfinished = 0;
  };

  void run_helper() noexcept;
  // Gives the lock up while it copies.
  bool take_slice() noexcept REQUIRES(mutex_);
  bool done_with(uint64_t job) const noexcept REQUIRES(mutex_) {
    return jobs_[job % kMemcpyJobsMax].unfinished == 0 || job < oldest_;
  }

  const unsigned helpers_;
  std::vector<std::thread> threads_;

  // Not held while a slice is copied.
  mutable Mutex mutex_;
  // For helpers; for the caller.
  Condition begun_, done_;
  // A ring, by number.
  std::array<Job, kMemcpyJobsMax> jobs_ GUARDED_BY(mutex_);
  // Jobs: the first that is not done, the first with slices left, the next one's number.
  uint64_t oldest_ GUARDED_BY(mutex_) = 0, taking_ GUARDED_BY(mutex_) = 0, next_ GUARDED_BY(mutex_) = 0;
  bool ending_ GUARDED_BY(mutex_) = false;
  // Slices that nobody has taken. Written under the lock; relaxed: a hint whether the lock is worth it.
  std::atomic<size_t> slices_left_{0};
};

// The useful number of helpers for a process with this many cores: the program's other threads and the server need
// cores too.
unsigned memcpy_helpers_here(unsigned most) noexcept;

}  // namespace gpuwire::client
