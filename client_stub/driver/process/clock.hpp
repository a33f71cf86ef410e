// The clock of traces, accounts and profiles.
#pragma once

#include <time.h>

#include <cstdint>

namespace gpuwire::client {

// Nanoseconds of CLOCK_MONOTONIC. Any thread.
inline uint64_t monotonic_ns() noexcept {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return uint64_t(time.tv_sec) * 1000000000u + uint64_t(time.tv_nsec);
}

}  // namespace gpuwire::client
