#include "client_stub/driver/state/copy/helped_memcpy.hpp"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "protocol/threads/cores.hpp"
#include "protocol/threads/helper_threads.hpp"
#include "protocol/threads/polling.hpp"

namespace gpuwire::client {
namespace {

// One helper for this many cores.
constexpr unsigned kCoresPerHelper = 4;

}  // namespace

HelpedMemcpy::~HelpedMemcpy() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
    slices_left_.store(1, std::memory_order_relaxed);  // ends the helpers' polling
  }
  begun_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

uint64_t HelpedMemcpy::begin(void* to, const void* from, size_t bytes) noexcept {
  if (helpers_ && threads_.empty() && bytes > kSliceBytes)
    threads_ = start_helper_threads(helpers_, [this] { run_helper(); });
  const size_t slices = (bytes + kSliceBytes - 1) / kSliceBytes;
  uint64_t job = 0;
  {
    MutexLock lock(mutex_);
    job = next_++;
    jobs_[job % kMemcpyJobsMax] = {static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes, 0, slices};
    slices_left_.store(slices_left_.load(std::memory_order_relaxed) + slices, std::memory_order_relaxed);
  }
  if (!threads_.empty()) begun_.notify_all();
  return job;
}

bool HelpedMemcpy::take_slice() noexcept {
  while (taking_ < next_ && jobs_[taking_ % kMemcpyJobsMax].taken == jobs_[taking_ % kMemcpyJobsMax].bytes) ++taking_;
  if (taking_ == next_) return false;
  Job& job = jobs_[taking_ % kMemcpyJobsMax];
  const size_t offset = job.taken, bytes = std::min(kSliceBytes, job.bytes - offset);
  job.taken += bytes;
  slices_left_.store(slices_left_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
  mutex_.unlock();
  std::memcpy(job.to + offset, job.from + offset, bytes);
  mutex_.lock();
  if (--job.unfinished == 0) done_.notify_one();
  while (oldest_ < next_ && jobs_[oldest_ % kMemcpyJobsMax].unfinished == 0) ++oldest_;
  return true;
}

bool HelpedMemcpy::help() noexcept {
  MutexLock lock(mutex_);
  return take_slice();
}

bool HelpedMemcpy::is_done(uint64_t job) const noexcept {
  MutexLock lock(mutex_);
  return done_with(job);
}

void HelpedMemcpy::finish(uint64_t job) noexcept {
  MutexLock lock(mutex_);
  while (!done_with(job)) {
    if (!take_slice()) done_.wait(lock.native(), [&]() REQUIRES(mutex_) { return done_with(job); });
  }
}

// A helper polls before it sleeps: the next slices are imminent, and a wake-up takes longer than copying one.
void HelpedMemcpy::run_helper() noexcept {
  pthread_setname_np(pthread_self(), "gpuwire-copy");
  MutexLock lock(mutex_);
  while (!ending_) {
    if (take_slice()) continue;
    lock.unlock();
    const auto begun = std::chrono::steady_clock::now();
    while (slices_left_.load(std::memory_order_relaxed) == 0 && std::chrono::steady_clock::now() - begun < kPollAlone)
      relax();
    lock.lock();
    if (!ending_ && taking_ == next_) begun_.wait(lock.native());
  }
}

unsigned memcpy_helpers_here(unsigned most) noexcept { return std::min(most, usable_cores() / kCoresPerHelper); }

}  // namespace gpuwire::client
