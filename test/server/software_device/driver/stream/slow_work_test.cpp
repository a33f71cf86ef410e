#include "server/software_device/driver/stream/slow_work.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <set>

namespace {

using gpuwire::software_device::SlowWork;
using std::chrono::microseconds;

constexpr uint64_t kSeed = 7, kPieces = 500, kStreams = 40;

// Returns the longest pause of a stream's pieces of work.
microseconds longest_of(uint64_t stream) {
  microseconds longest{0};
  for (uint64_t piece = 0; piece < kPieces; ++piece)
    longest = std::max(longest, SlowWork::pause_of(kSeed, stream, piece));
  return longest;
}

}  // namespace

TEST_CASE("A seed, a stream and a number name one pause of a piece of work") {
  CHECK(SlowWork::pause_of(kSeed, 3, 4) == SlowWork::pause_of(kSeed, 3, 4));
  std::set<microseconds> seen;
  for (uint64_t seed = 1; seed <= kPieces; ++seed) seen.insert(SlowWork::pause_of(seed, 3, 4));
  CHECK(seen.size() > 50);
}

TEST_CASE("Some streams are slow, some do not pause, and half of a slow stream's pieces do not either") {
  std::set<microseconds> bounds;
  for (uint64_t stream = 0; stream < kStreams; ++stream) {
    const microseconds longest = longest_of(stream);
    const auto* bound = std::lower_bound(SlowWork::kLongest.begin(), SlowWork::kLongest.end(), longest);
    REQUIRE(bound != SlowWork::kLongest.end());
    bounds.insert(*bound);
    uint64_t at_once = 0;
    for (uint64_t piece = 0; piece < kPieces; ++piece)
      at_once += SlowWork::pause_of(kSeed, stream, piece) == microseconds{0};
    CHECK(at_once > kPieces / 3);
    CHECK((longest == microseconds{0} || at_once < kPieces * 2 / 3));
  }
  CHECK(bounds.size() == SlowWork::kLongest.size());
}
