// Memory that one thread copies with a few helpers: what is to be copied is cut into slices, which whoever is free
// takes.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace gpuwire::client {

// Small enough that a thread which loses its core holds up little, and that what was written is in the cache yet when
// the device reads it; large enough that taking one does not count.
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
  // Are slices of what has begun about to run out, for as many threads?
  bool wants_more() const noexcept { return slices_left_.load(std::memory_order_relaxed) <= helpers_; }

 private:
  struct Job {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    size_t bytes = 0, taken = 0;  // bytes of slices that somebody has taken
    size_t unfinished = 0;        // slices that are not copied
  };

  void run_helper() noexcept;
  bool take_slice(std::unique_lock<std::mutex>& lock) noexcept;
  bool done_with(uint64_t job) const noexcept { return jobs_[job % kMemcpyJobsMax].unfinished == 0 || job < oldest_; }

  const unsigned helpers_;
  std::vector<std::thread> threads_;

  mutable std::mutex mutex_;                     // guards what follows; not held while a slice is copied
  std::condition_variable begun_, done_;         // for helpers; for the caller
  std::array<Job, kMemcpyJobsMax> jobs_;         // a ring, by number
  uint64_t oldest_ = 0, taking_ = 0, next_ = 0;  // not done; with slices left; the next one's number
  bool ending_ = false;
  // Slices that nobody has taken. Written under the lock; relaxed: a hint whether the lock is worth it.
  std::atomic<size_t> slices_left_{0};
};

// How many helpers pay where this process may run on so many cores: the program's other threads want some, and so does
// the server.
unsigned memcpy_helpers_here(unsigned most) noexcept;

}  // namespace gpuwire::client
