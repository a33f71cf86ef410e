// session_simulation [--scenarios N] [--seed S] [--shared-memory 1] [--verbose 1]: runs N scenarios from seed S on;
// ends with 1 at the first that fails, whose seed it prints.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <vector>

#include "test/simulation/world.hpp"

using namespace gpuwire::simulation;

int main(int argc, char** argv) {
  uint64_t scenarios = 1000, first = 1, shared_memory = 0, verbose = 0;
  for (int i = 1; i + 1 < argc; i += 2) {
    uint64_t value = 0;
    std::from_chars(argv[i + 1], argv[i + 1] + std::strlen(argv[i + 1]), value);
    if (!std::strcmp(argv[i], "--scenarios")) scenarios = value;
    if (!std::strcmp(argv[i], "--seed")) first = value;
    if (!std::strcmp(argv[i], "--shared-memory")) shared_memory = value;
    if (!std::strcmp(argv[i], "--verbose")) verbose = value;
  }
  std::printf("%lu scenarios from seed %lu on\n", static_cast<unsigned long>(scenarios),
              static_cast<unsigned long>(first));
  std::fflush(stdout);
  uint64_t cuts = 0, again = 0;
  std::vector<bool> cut_at(20'000);  // after how many bytes of a connection
  for (uint64_t seed = first; seed < first + scenarios; ++seed) {
    Scenario scenario = scenario_of(seed);
    if (verbose)
      std::printf("seed %lu: %s\n", static_cast<unsigned long>(seed), describe(scenario).c_str()), std::fflush(stdout);
    scenario.shared_memory = shared_memory != 0;
    Outcome outcome = run(scenario);
    cuts += outcome.cuts;
    for (uint64_t at : outcome.cut_at)
      if (at < cut_at.size()) cut_at[at] = true;
    again += outcome.bytes_sent_again;
    if (outcome.failure.empty()) continue;
    std::printf(
        "seed %lu failed: %s\n  (%s)\n  again: session_simulation --scenarios 1 --seed %lu --shared-memory %lu\n",
        static_cast<unsigned long>(seed), outcome.failure.c_str(), describe(scenario).c_str(),
        static_cast<unsigned long>(seed), static_cast<unsigned long>(shared_memory));
    return 1;
  }
  auto first_whole = std::find(cut_at.begin(), cut_at.end(), false) - cut_at.begin();
  std::printf("cut at each of the first %ld bytes of a connection, and at %ld of the first %zu\n", long(first_whole),
              long(std::count(cut_at.begin(), cut_at.end(), true)), cut_at.size());
  std::printf("%lu connections, %lu bytes sent again, all as without a cut\n", static_cast<unsigned long>(cuts),
              static_cast<unsigned long>(again));
  return 0;
}
