// Waiting for another thread's doing.
#pragma once

#include <chrono>
#include <thread>

namespace gpuwire::test {

// No test judges by time: this only ends one that hangs.
inline constexpr std::chrono::seconds kTimeout{120};

// Returns true as soon as `condition` is true; false after kTimeout.
template <class Condition>
bool becomes(Condition condition) {
  auto until = std::chrono::steady_clock::now() + kTimeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace gpuwire::test
