// Deterministic scenarios from 64-bit seeds: choices, and the loop that runs many of them and names the seed that
// fails.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

namespace gpuwire::scheduler::test {

// The same choices from the same seed on every machine (SplitMix64).
class Choices {
 public:
  explicit Choices(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }  // [0, 1)
  bool chance(double probability) { return unit() < probability; }
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(next() % static_cast<uint64_t>(high - low + 1));
  }  // both included
  double log_between(double low, double high) { return low * std::exp(unit() * std::log(high / low)); }
  template <class T, size_t N>
  const T& pick(const T (&of)[N]) {
    return of[next() % N];
  }

 private:
  uint64_t state_;
};

// Runs one scenario; `verbose` prints what happens. Returns what was wrong, or nothing.
using Scenario = std::function<std::string(uint64_t seed, bool verbose)>;

// A program's main: PROGRAM [--scenarios N] [--first SEED] [--shard I/N]  or  PROGRAM --seed N, which replays one
// verbosely.
inline int run_scenarios(int argc, char** argv, const Scenario& scenario, uint64_t scenarios) {
  uint64_t first = 1;
  unsigned shard = 0, shards = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const uint64_t value = std::strtoull(argv[i + 1], nullptr, 0);
    if (std::strcmp(argv[i], "--seed") == 0) {
      const std::string wrong = scenario(value, true);
      std::printf("seed %llu: %s\n", static_cast<unsigned long long>(value),
                  wrong.empty() ? "all held" : wrong.c_str());
      return wrong.empty() ? 0 : 1;
    }
    if (std::strcmp(argv[i], "--scenarios") == 0) scenarios = value;
    if (std::strcmp(argv[i], "--first") == 0) first = value;
    if (std::strcmp(argv[i], "--shard") == 0 && std::sscanf(argv[i + 1], "%u/%u", &shard, &shards) != 2) return 2;
  }
  constexpr int kFailuresShown = 5;
  int failures = 0;
  uint64_t done = 0;
  const auto begun = std::chrono::steady_clock::now();
  for (uint64_t seed = first + shard; seed < first + scenarios && failures < kFailuresShown; seed += shards, ++done) {
    const std::string wrong = scenario(seed, false);
    if (wrong.empty()) continue;
    ++failures;
    std::printf("seed %llu: %s\n  replay: %s --seed %llu\n", static_cast<unsigned long long>(seed), wrong.c_str(),
                argv[0], static_cast<unsigned long long>(seed));
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  std::printf("%llu scenarios from seed %llu, %.0f per second, %d failed\n", static_cast<unsigned long long>(done),
              static_cast<unsigned long long>(first), static_cast<double>(done) / seconds, failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace gpuwire::scheduler::test
