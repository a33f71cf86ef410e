// Polls for an event that is expected any moment, instead of sleeping: a wake-up takes 50 to 300 us on a virtual
// machine.
#pragma once

#include <sched.h>

#include <chrono>

#include "protocol/threads/cores.hpp"

namespace gpuwire {

// As long as a wake-up takes at least: until then a thread that looks does nothing else.
inline constexpr std::chrono::microseconds kPollAlone{50};

// The time for which a thread may poll for an event between two processes of this machine or over a quick link: with
// few cores the process at the other end, or the thread that this one waits for, needs the core.
inline constexpr unsigned kPollCoresMin = 8;
inline std::chrono::nanoseconds brief_poll() noexcept {
  return usable_cores() >= kPollCoresMin ? std::chrono::nanoseconds(kPollAlone) : std::chrono::nanoseconds(0);
}

// Between two looks of a thread that looks for no longer than a wake-up would take.
inline void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// The same for a thread that may poll for longer, and has polled for `spent`. Past kPollAlone each poll takes about 1
// us, and leaves the other thread of its core to work and the core to others.
inline void relax(std::chrono::nanoseconds spent) noexcept {
  if (spent < kPollAlone) return relax();
  constexpr int kPauses = 16;
  for (int i = 0; i < kPauses; ++i) relax();
  ::sched_yield();
}

}  // namespace gpuwire
