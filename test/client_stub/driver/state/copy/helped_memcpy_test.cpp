#include "client_stub/driver/state/copy/helped_memcpy.hpp"

#include <doctest/doctest.h>

#include <deque>
#include <random>
#include <vector>

namespace gpuwire::client {

TEST_CASE("Copies of any size are whole when they are done, with however many helpers, also several at once") {
  const unsigned seed = 31;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  std::vector<std::byte> source(4 << 20);
  for (auto& byte : source) byte = std::byte(random());
  for (unsigned helpers : {0u, 1u, 3u}) {
    CAPTURE(helpers);
    std::vector<std::byte> target(source.size());
    HelpedMemcpy memory(helpers);
    struct Open {
      uint64_t job;
      size_t offset, bytes;
    };
    std::deque<Open> open;
    size_t offset = 0;
    while (offset < source.size() || !open.empty()) {
      if (offset < source.size() && open.size() < kMemcpyJobsMax && random() % 3 != 0) {
        const size_t bytes = std::min<size_t>(1 + random() % (3 * kSliceBytes), source.size() - offset);
        open.push_back({memory.begin(&target[offset], &source[offset], bytes), offset, bytes});
        offset += bytes;
      } else if (random() % 2 == 0) {
        memory.help();
      } else if (!open.empty()) {
        const Open first = open.front();
        open.pop_front();
        memory.finish(first.job);
        REQUIRE(memory.is_done(first.job));
        REQUIRE(std::equal(&source[first.offset], &source[first.offset] + first.bytes, &target[first.offset]));
      }
    }
    CHECK_FALSE(memory.help());
    CHECK(memory.wants_more());
    CHECK(source == target);
  }
}

TEST_CASE("A thread without helpers copies slice by slice, the oldest copy first") {
  std::vector<std::byte> source(2 * kSliceBytes + 1, std::byte{5}), target(source.size()), other(source.size());
  HelpedMemcpy memory(0);
  const uint64_t first = memory.begin(target.data(), source.data(), source.size());
  const uint64_t second = memory.begin(other.data(), source.data(), 1);
  CHECK_FALSE(memory.wants_more());
  for (int slice = 0; slice < 3; ++slice) {
    CHECK_FALSE(memory.is_done(first));
    CHECK(memory.help());
  }
  CHECK(memory.is_done(first));
  CHECK_FALSE(memory.is_done(second));
  CHECK(memory.help());
  CHECK(memory.is_done(second));
  CHECK_FALSE(memory.help());
}

}  // namespace gpuwire::client
