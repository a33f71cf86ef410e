// Slow work, with which tests detect results that are reported before the work is done. With GPUWIRE_SOFTWARE_SLOW=SEED
// each piece of work begins after a pause that depends on the seed, its stream and its number.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace gpuwire::software_device {

// The stream number for nodes of graphs, which are in no stream of their own.
inline constexpr uint64_t kStreamOfGraphs = ~uint64_t{0};

class SlowWork {
 public:
  // The longest pauses. Each stream has one of them, so that slow streams run beside fast ones.
  static constexpr std::array<std::chrono::microseconds, 4> kLongest{
      std::chrono::microseconds{0}, std::chrono::microseconds{60}, std::chrono::microseconds{400},
      std::chrono::microseconds{2500}};

  // 0: no work pauses.
  explicit SlowWork(uint64_t seed) noexcept : seed_(seed) {}

  // Called before a piece of work, in the thread that executes it.
  void pause(uint64_t stream) noexcept {
    if (seed_ == 0) return;
    // Relaxed: only the uniqueness of the number matters.
    std::this_thread::sleep_for(pause_of(seed_, stream, piece_.fetch_add(1, std::memory_order_relaxed)));
  }

  // Half of the pieces of a slow stream do not pause.
  static std::chrono::microseconds pause_of(uint64_t seed, uint64_t stream, uint64_t piece) noexcept {
    const auto longest = static_cast<uint64_t>(kLongest[mixed(mixed(seed) ^ stream) % kLongest.size()].count());
    const uint64_t chosen = mixed(mixed(mixed(seed) ^ stream) + piece);
    return std::chrono::microseconds{(chosen & 1) != 0 ? (chosen >> 1) % (longest + 1) : 0};
  }

 private:
  // SplitMix64 (Steele, Lea, Flood, Fast splittable pseudorandom number generators, 2014).
  static uint64_t mixed(uint64_t value) noexcept {
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
  }

  const uint64_t seed_;
  std::atomic<uint64_t> piece_{0};
};

}  // namespace gpuwire::software_device
