#include "client_stub/session/cached_bulk.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <set>
#include <vector>

using namespace gpuwire;
using client::CachedBulk;

TEST_CASE("a block that was let go is given again, and one that is held is not") {
  CachedBulk kept;
  auto first = kept.take(600'000);
  auto second = kept.take(600'000);
  REQUIRE(first);
  REQUIRE(second);
  CHECK(first != second);
  std::byte* address = first.get();
  first.reset();
  CHECK(kept.take(1'000'000).get() == address);
  CHECK(kept.held_bytes() == 2u << 20);
}

TEST_CASE("no more is held than the bound, whatever sizes are asked for, and no two blocks overlap") {
  std::mt19937_64 random(20261122);
  CachedBulk kept;
  struct Held {
    std::shared_ptr<std::byte> block;
    size_t bytes;
    std::byte mark;
  };
  std::vector<Held> held;
  size_t given = 0, refused = 0, wrong = 0;
  for (int round = 0; round < 5000; ++round) {
    if (random() % 2 && !held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      const Held& last = held.back();
      wrong += last.block.get()[0] != last.mark || last.block.get()[last.bytes - 1] != last.mark;
      held.pop_back();
      continue;
    }
    size_t bytes = 1 + random() % client::kCachedBlockBytesMax;
    auto block = kept.take(bytes);
    REQUIRE(kept.held_bytes() <= client::kCachedBulkBytesMax);
    if (!block) {
      ++refused;
      continue;
    }
    ++given;
    auto mark = std::byte(random());
    block.get()[0] = block.get()[bytes - 1] = mark;
    held.push_back({std::move(block), bytes, mark});
  }
  CHECK(wrong == 0);
  CHECK(given > 0);
  CHECK(refused > 0);
}

TEST_CASE("free blocks of one size make room for those of another") {
  CachedBulk kept;
  {
    std::vector<std::shared_ptr<std::byte>> small;
    while (auto block = kept.take(client::kCachedBlockBytesMin)) small.push_back(std::move(block));
    CHECK(small.size() == client::kCachedBulkBytesMax / client::kCachedBlockBytesMin);
    CHECK_FALSE(kept.take(client::kCachedBlockBytesMax));
  }
  CHECK(kept.take(client::kCachedBlockBytesMax));
}

TEST_CASE("bulk that is larger than the largest block is not cached") {
  CachedBulk kept;
  CHECK_FALSE(kept.take(client::kCachedBlockBytesMax + 1));
  CHECK(kept.held_bytes() == 0);
}

TEST_CASE("a block may outlive the session that it was made for") {
  std::shared_ptr<std::byte> block;
  {
    CachedBulk kept;
    block = kept.take(1);
  }
  std::memset(block.get(), 1, client::kCachedBlockBytesMin);
  CHECK(block.get()[client::kCachedBlockBytesMin - 1] == std::byte{1});
}
