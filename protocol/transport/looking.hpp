// Looking again and again at what is expected any moment, instead of sleeping: being woken takes 50 to 300 us on a virtual machine.
#pragma once

#include <sched.h>

namespace gpuwire {

// Between two looks of a thread that looks for no longer than a wake-up would take.
inline void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// The same for one that looks for longer, about 1 us: leaves the other thread of its core to work, and the core to whoever else wants it.
inline void look_away() noexcept {
  constexpr int kPauses = 16;
  for (int i = 0; i < kPauses; ++i) relax();
  ::sched_yield();
}

}  // namespace gpuwire
