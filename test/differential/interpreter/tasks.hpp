// Tasks of the program on its memory, run at once or in a function that the driver calls in a stream's order.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace differential {

uint64_t digest(const std::byte* at, size_t bytes);
void write_pattern(std::byte* at, size_t bytes, uint64_t seed);

// The argument of %write and %read. Each first waits for `pause_us`, like a longer function; then it writes the
// pattern, or takes the digest of the memory.
struct Task {
  std::byte* at = nullptr;
  size_t bytes = 0;
  uint64_t seed = 0;
  unsigned pause_us = 0;
  // Written on the driver's threads, read after a synchronisation with them.
  std::atomic<unsigned> runs{0};
  std::atomic<uint64_t> found{0};  // by %read, in its last run

  void write();
  void read();
};

}  // namespace differential
