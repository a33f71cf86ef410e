// Locks that a thread still holds because it has left its function without returning.
#pragma once

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <mutex>

namespace gpuwire {

// Returns true if the calling thread holds the mutex. Returns false for mutexes of other libraries than the C library.
inline bool is_held_by_this_thread(std::mutex& mutex) noexcept {
#if defined(__GLIBC__)
  return mutex.native_handle()->__data.__owner == int(syscall(SYS_gettid));
#else
  static_cast<void>(mutex);
  return false;
#endif
}

// Releases the mutex if the calling thread holds it. Returns true if it was held.
inline bool take_from_this_thread(std::mutex& mutex) noexcept {
  if (!is_held_by_this_thread(mutex)) return false;
  mutex.unlock();
  return true;
}

// Returns true if the mutex was free, so the calling thread does not hold it. For a signal handler, which may have
// interrupted its thread after a mutex was taken or before it is released, while the mutex does not name its owner:
// such a mutex seems to belong to another thread. The function waits a bounded number of turns for another thread.
inline bool is_seen_free(std::mutex& mutex) noexcept {
  // A turn may be long on a busy machine.
  constexpr unsigned kTurnsMax = 20;
  for (unsigned turn = 0; turn < kTurnsMax; ++turn) {
    if (mutex.try_lock()) {
      mutex.unlock();
      return true;
    }
    if (is_held_by_this_thread(mutex)) return false;
    sched_yield();
  }
  return false;
}

}  // namespace gpuwire
