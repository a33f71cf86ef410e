#include "protocol/threads/parallel.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <vector>

using gpuwire::Parallel;

TEST_CASE("Each piece is worked on once before a run returns, with and without helpers, again and again") {
  for (unsigned helpers : {0u, 1u, 3u})
    for (auto poll : {std::chrono::microseconds(0), std::chrono::microseconds(50)}) {
      Parallel parallel(helpers, poll);
      for (size_t count : {0u, 1u, 2u, 7u, 64u, 64u, 1u, 300u}) {
        std::vector<std::atomic<int>> seen(count);
        parallel.run(count, [&](size_t piece) { seen[piece].fetch_add(1); });
        for (auto& times : seen) REQUIRE(times.load() == 1);
      }
    }
}
