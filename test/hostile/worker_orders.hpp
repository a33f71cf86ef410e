// The orders for a compromised worker: allocations of these sizes are orders, and the returned address is the answer.
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
  use_watches = 0xbad0'000b,        // epoll
  send_to_an_address = 0xbad0'000c,  // a datagram to the system's log
  change_modes =
      0xbad0'000d,  // of $GPUWIRE_TEST_TARGETS and of its own program, to what they are; answer: 1 + what worked
  make_others_wait = 0xbad0'000e,  // SO_LINGER on everything it has; room behind a file's end; answer: 1 + what worked
  forge_the_log = 0xbad0'000f,     // kForgedLine into every file and pipe that it has; answer: 1 + how many took it
};

inline constexpr const char* kForgedLine = "\n2026-01-01T00:00:00.000+00:00 info forged\n";
inline constexpr unsigned kThreadsOrdered = 5000;  // more than a worker may have

}  // namespace gpuwire::test
