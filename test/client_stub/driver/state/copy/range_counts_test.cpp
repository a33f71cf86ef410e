#include "client_stub/driver/state/copy/range_counts.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace gpuwire::client {

TEST_CASE("Ranges that come and go are found at exactly the bytes that they hold") {
  const unsigned seed = 32;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  struct Range {
    uint64_t begin, bytes;
  };
  std::vector<Range> held;
  RangeCounts ranges;
  auto any_range = [&] { return Range{random() % 60, random() % 12}; };
  for (int step = 0; step < 20000; ++step) {
    if (held.empty() || random() % 2) {
      held.push_back(any_range());
      ranges.add(held.back().begin, held.back().bytes);
    } else {
      const size_t which = random() % held.size();
      ranges.remove(held[which].begin, held[which].bytes);
      held.erase(held.begin() + std::ptrdiff_t(which));
    }
    const Range asked = any_range();
    const bool expected = std::any_of(held.begin(), held.end(), [&](const Range& range) {
      return range.bytes != 0 && asked.bytes != 0 && range.begin < asked.begin + asked.bytes &&
             asked.begin < range.begin + range.bytes;
    });
    REQUIRE(ranges.any(asked.begin, asked.bytes) == expected);
  }
  for (const Range& range : held) ranges.remove(range.begin, range.bytes);
  CHECK(ranges.empty());
}

TEST_CASE("A range that was added twice is there until it was removed twice") {
  RangeCounts ranges;
  ranges.add(100, 10);
  ranges.add(100, 10);
  ranges.add(105, 10);
  ranges.remove(100, 10);
  CHECK(ranges.any(104, 1));
  ranges.remove(100, 10);
  CHECK_FALSE(ranges.any(104, 1));
  CHECK(ranges.any(0, ~uint64_t{0}));
  ranges.remove(105, 10);
  CHECK(ranges.empty());
}

}  // namespace gpuwire::client
