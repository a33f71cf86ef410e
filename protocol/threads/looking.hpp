// Looking again and again at what is expected any moment, instead of sleeping: being woken takes 50 to 300 us on a
// virtual machine.
#pragma once

#include <sched.h>

#include <chrono>

namespace gpuwire {

// As long as a wake-up takes at least: until then a thread that looks does nothing else.
inline constexpr std::chrono::microseconds kLookAlone{50};

// Between two looks of a thread that looks for no longer than a wake-up would take.
inline void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// The same for one that may look for longer, and has for `spent`. Past kLookAlone it takes about 1 us, and leaves the
// other thread of its core to work and the core to whoever else wants it.
inline void relax(std::chrono::nanoseconds spent) noexcept {
  if (spent < kLookAlone) return relax();
  constexpr int kPauses = 16;
  for (int i = 0; i < kPauses; ++i) relax();
  ::sched_yield();
}

}  // namespace gpuwire
