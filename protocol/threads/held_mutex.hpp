// Locks that a thread still holds because it has left its function without returning.
#pragma once

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <mutex>

namespace gpuwire {

// Does the calling thread hold it? Of the C library's mutexes; others say no.
inline bool is_held_by_this_thread(std::mutex& mutex) noexcept {
#if defined(__GLIBC__)
  return mutex.native_handle()->__data.__owner == int(syscall(SYS_gettid));
#else
  static_cast<void>(mutex);
  return false;
#endif
}

// Gives it back if so. True: it was held.
inline bool take_from_this_thread(std::mutex& mutex) noexcept {
  if (!is_held_by_this_thread(mutex)) return false;
  mutex.unlock();
  return true;
}

// For a signal handler, which may have interrupted its thread between a mutex's being taken or given back and the note
// of its owner: such a mutex seems to be another thread's. Another thread is waited for a bounded number of turns.
// True: it was free, so the calling thread does not hold it.
inline bool is_seen_free(std::mutex& mutex) noexcept {
  constexpr unsigned kTurnsMax = 20;  // each may be long on a busy machine
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
