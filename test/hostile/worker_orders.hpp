// What a worker that was taken over is told to do: allocations of these sizes are orders, and the address that comes
// back is the answer.
#pragma once

#include <cstdint>

namespace gpuwire::test {

enum class Order : uint64_t {
  reach_for_files = 0xbad0'0001,   // answer: 1 + how many of $GPUWIRE_TEST_TARGETS, or of other processes' secrets,
                                   // could be opened, listed, renamed, locked or removed
  attach_to_broker = 0xbad0'0002,  // ptrace
  open_a_socket = 0xbad0'0003,
  signal_the_broker = 0xbad0'0004,
  start_a_process = 0xbad0'0005,
  scribble = 0xbad0'0006,  // random words in all memory that is shared with the broker, $GPUWIRE_TEST_ROUNDS times;
                           // answer: 1 + pages found
  flood_the_broker = 0xbad0'0007,   // random messages on the broker's pair; answer: 1 + messages taken
  take_memory = 0xbad0'0008,        // private memory, as much as it gets; answer: MiB
  weaken_the_broker = 0xbad0'0009,  // its limits, priority, processors, signals by descriptors; answer: 1 + what worked
  start_threads = 0xbad0'000a,      // kThreadsOrdered, or as many as it gets; answer: 1 + how many
};

inline constexpr unsigned kThreadsOrdered = 5000;  // more than a worker may have

}  // namespace gpuwire::test
