// A condition variable like std::condition_variable, which the product uses nowhere, for two reasons: the C library
// counts the waiting threads, whereas a program's thread may leave a wait by siglongjmp() out of a signal handler; and
// up to glibc 2.40 notify_one() can wake none of several waiting threads (glibc's bug 25847).
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <mutex>

#include "protocol/threads/mutex.hpp"

namespace gpuwire {

class Condition {
 public:
  Condition() = default;
  Condition(const Condition&) = delete;
  Condition& operator=(const Condition&) = delete;

  // Called after the change, with the mutex held or after its release.
  void notify_all() noexcept { wake(INT32_MAX); }
  // Wakes a single thread. For threads that all wait for the same thing: whichever wakes finds it.
  void notify_one() noexcept { wake(1); }

  template <class Lock>
  void wait(Lock& lock) noexcept {
    sleep(lock, nullptr);
  }
  // `done` runs with the lock held, which its own REQUIRES names.
  template <class Lock, class Done>
  void wait(Lock& lock, Done done) noexcept WITHOUT_LOCK_CHECK {
    while (!done()) sleep(lock, nullptr);
  }
  // Returns false if `deadline` has passed. May return early.
  template <class Lock>
  bool wait_until(Lock& lock, std::chrono::steady_clock::time_point deadline) noexcept {
    const auto left = std::chrono::nanoseconds(deadline - std::chrono::steady_clock::now()).count();
    if (left <= 0) return false;
    const timespec limit{time_t(left / 1'000'000'000), long(left % 1'000'000'000)};
    sleep(lock, &limit);
    return true;
  }
  template <class Lock, class Rep, class Period, class Done>
  bool wait_for(Lock& lock, std::chrono::duration<Rep, Period> time, Done done) noexcept WITHOUT_LOCK_CHECK {
    // Limits the timeout so that the sum with the clock does not overflow.
    constexpr auto kForever = std::chrono::hours(24 * 365);
    const auto now = std::chrono::steady_clock::now();
    return wait_until(
        lock, now + (time < kForever ? std::chrono::nanoseconds(time) : std::chrono::nanoseconds(kForever)), done);
  }
  template <class Lock, class Rep, class Period>
  void wait_for(Lock& lock, std::chrono::duration<Rep, Period> time) noexcept {
    wait_until(lock, std::chrono::steady_clock::now() + time);
  }
  template <class Lock, class Done>
  bool wait_until(Lock& lock, std::chrono::steady_clock::time_point deadline, Done done) noexcept WITHOUT_LOCK_CHECK {
    while (!done())
      if (!wait_until(lock, deadline)) return done();
    return true;
  }

 private:
  void wake(int threads_max) noexcept {
    changes_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0)
      syscall(SYS_futex, &changes_, FUTEX_WAKE_PRIVATE, threads_max, nullptr, nullptr, 0);
  }

  template <class Lock>
  void sleep(Lock& lock, const timespec* limit) noexcept {
    // Both accesses are seq_cst: either the notifying thread sees the sleeper, or the sleeper sees a changed count. A
    // sleeper that has left by siglongjmp() stays counted, which costs every later notification a system call.
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = changes_.load(std::memory_order_seq_cst);
    lock.unlock();
    syscall(SYS_futex, &changes_, FUTEX_WAIT_PRIVATE, seen, limit, nullptr, 0);
    lock.lock();
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

  std::atomic<uint32_t> changes_{0}, sleepers_{0};
};
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

}  // namespace gpuwire
