#include "tasks.hpp"

#include <chrono>
#include <thread>

namespace differential {

uint64_t digest(const std::byte* at, size_t bytes) {
  uint64_t sum = 14695981039346656037u;  // FNV-1a
  for (size_t i = 0; i < bytes; ++i) sum = (sum ^ uint64_t(at[i])) * 1099511628211u;
  return sum;
}

// Different seeds, and different places with one seed, get different patterns.
void write_pattern(std::byte* at, size_t bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes; ++i) at[i] = std::byte(uint8_t(i * 7 + (i >> 8) + seed * 31));
}

void Task::write() {
  std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
  write_pattern(at, bytes, seed);
  ++runs;
}

void Task::read() {
  std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
  found = digest(at, bytes);
  ++runs;
}

}  // namespace differential
