// Sleeps on a word of memory that processes share.
#pragma once

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gpuwire::server {

// Returns when the word differs from `seen`, after a wake-up or the time limit, or spuriously.
inline void futex_wait(const std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds at_most) {
  timespec limit{time_t(at_most.count() / 1'000'000'000), long(at_most.count() % 1'000'000'000)};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}
inline void futex_wake(const std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace gpuwire::server
