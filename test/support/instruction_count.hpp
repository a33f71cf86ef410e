// Counts the instructions that a call executes, independently of the machine's load.
#pragma once

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>

namespace gpuwire::test {

// Sanitizers add instructions, and delay signals.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
inline constexpr bool kCountsInstructions = true;
#else
inline constexpr bool kCountsInstructions = false;
#endif

namespace instruction_count {

inline volatile std::size_t steps = 0;

inline void step(int) { steps = steps + 1; }

}  // namespace instruction_count

// Returns the smallest number of instructions of three calls on this thread, each followed by `between`: allocators and
// growing vectors make single calls longer. The processor stops after each instruction, so a call should be short.
template <class Call, class Between>
std::size_t count_instructions(Call&& call, Between&& between) {
  std::size_t fewest = SIZE_MAX;
#if defined(__x86_64__)
  constexpr std::uint64_t kTrapFlag = 0x100;
  struct sigaction stepping {
  }, before{};
  stepping.sa_handler = instruction_count::step;
  sigaction(SIGTRAP, &stepping, &before);
  for (int i = 0; i < 3; ++i) {
    instruction_count::steps = 0;
    __builtin_ia32_writeeflags_u64(__builtin_ia32_readeflags_u64() | kTrapFlag);
    call();
    __builtin_ia32_writeeflags_u64(__builtin_ia32_readeflags_u64() & ~kTrapFlag);
    const std::size_t steps = instruction_count::steps;
    fewest = std::min(fewest, steps);
    between();
  }
  sigaction(SIGTRAP, &before, nullptr);
#endif
  return fewest;
}

}  // namespace gpuwire::test
