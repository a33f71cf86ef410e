// Polls for an event that is expected soon, instead of sleeping: a wake-up takes 50 to 300 us on a virtual machine.
#pragma once

#include <sched.h>

#include <chrono>

#include "protocol/threads/cores.hpp"

namespace gpuwire {

// The shortest time that a wake-up takes. Up to this time, a polling thread does nothing else.
inline constexpr std::chrono::microseconds kPollAlone{50};

// With fewer cores than this, a thread does not poll for an event from another process of this machine or from a fast
// link, because the process at the other end, or the thread that this one waits for, needs the core.
inline constexpr unsigned kPollCoresMin = 8;
inline std::chrono::nanoseconds brief_poll() noexcept {
  return usable_cores() >= kPollCoresMin ? std::chrono::nanoseconds(kPollAlone) : std::chrono::nanoseconds(0);
}

// The pause between two polls of a thread that polls no longer than a wake-up would take.
inline void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// The pause of a thread that polls for longer and has polled for `spent`. After kPollAlone each poll takes about 1 us;
// meanwhile the core's other hardware thread works, and other threads can take the core.
inline void relax(std::chrono::nanoseconds spent) noexcept {
  if (spent < kPollAlone) return relax();
  constexpr int kPauses = 16;
  for (int i = 0; i < kPauses; ++i) relax();
  ::sched_yield();
}

}  // namespace gpuwire
