#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <random>
#include <string_view>

#include "server/replay/copy/staging.hpp"
#include "test/server/replay/fake_session.hpp"

using namespace gpuwire;
using namespace gpuwire::server;

TEST_CASE("a staging block holds what was asked for and is used again after it was given back") {
  test::FakeDriver driver;
  auto pool = std::make_shared<StagingPool>(driver.table);
  std::byte* first = nullptr;
  {
    StagingBlock block = pool->take(100'000);
    REQUIRE(block);
    CHECK(block.capacity() >= 100'000);
    first = block.data();
    CHECK(pool->taken_blocks() == 1);
  }
  CHECK(pool->taken_blocks() == 0);
  StagingBlock again = pool->take(70'000);
  CHECK(again.data() == first);
  CHECK(driver.registered.size() == 1);
}

TEST_CASE("sizes that no block has are refused") {
  test::FakeDriver driver;
  auto pool = std::make_shared<StagingPool>(driver.table);
  CHECK_FALSE(pool->take(0));
  CHECK_FALSE(pool->take(kStagingBlockBytesMax + 1));
  CHECK(pool->take(1));
}

TEST_CASE("staging stays within its bound, and goes beyond it only when told that it is urgent") {
  test::FakeDriver driver;
  auto pool = std::make_shared<StagingPool>(driver.table, nullptr, 8u << 20, 16u << 20);
  StagingBlock first = pool->take(4u << 20), second = pool->take(4u << 20);
  REQUIRE(first);
  REQUIRE(second);
  CHECK_FALSE(pool->take(1));
  StagingBlock urgent = pool->take(1, true);
  CHECK(urgent);
  CHECK(pool->slab_bytes() == (10u << 20));
  CHECK_FALSE(pool->take(8u << 20, true));
}

TEST_CASE("unused blocks of one size make room for another size") {
  test::FakeDriver driver;
  auto pool = std::make_shared<StagingPool>(driver.table, nullptr, 8u << 20, 8u << 20);
  {
    std::vector<StagingBlock> small;
    while (StagingBlock block = pool->take(kStagingBlockBytesMin)) small.push_back(std::move(block));
    CHECK(small.size() == (8u << 20) / kStagingBlockBytesMin);
  }
  CHECK(pool->take(8u << 20));
  CHECK(driver.registered.size() == 1);
}

TEST_CASE("a block is given back while the driver registers memory, and while it unregisters some") {
  // Either call may block until a stream continues that waits at a function of the client; the function's answer waits
  // for a copy to be sent, and the copy for its block.
  test::FakeDriver driver;
  auto pool = std::make_shared<StagingPool>(driver.table, nullptr, 4u << 20, 4u << 20);
  for (std::string_view function : {"cuMemHostRegister_v2", "cuMemHostUnregister"}) {
    const bool registers = function == "cuMemHostRegister_v2";
    StagingBlock used = pool->take(kStagingSlabBytes);
    if (!registers) pool->take(kStagingBlockBytesMin);  // a free block, when the next one needs room
    size_t given = 0;
    driver.during = [&](std::string_view called) {
      if (called == function && used) given += test::done_elsewhere([&] { used = {}; });
    };
    CHECK(pool->take(registers ? kStagingBlockBytesMin : kStagingSlabBytes));
    driver.during = nullptr;
    CHECK(given == 1);
  }
}

TEST_CASE("memory that cannot be pinned serves all the same") {
  test::FakeDriver driver;
  driver.failures["cuMemHostRegister_v2"] = CUDA_ERROR_OUT_OF_MEMORY;
  auto pool = std::make_shared<StagingPool>(driver.table);
  StagingBlock block = pool->take(1000);
  REQUIRE(block);
  std::memset(block.data(), 1, block.capacity());
}

TEST_CASE("a block outlives its context, and the driver is not asked about it afterwards") {
  test::FakeDriver driver;
  auto pool = std::make_shared<StagingPool>(driver.table);
  StagingBlock block = pool->take(1000);
  pool->take(8u << 20);
  pool->abandon();
  CHECK(driver.registered.size() == 1);  // the taken block; the free one is unregistered
  CHECK_FALSE(pool->take(1000));
  pool.reset();
  std::memset(block.data(), 1, block.capacity());
}

TEST_CASE("random takes and returns never hand out the same byte twice nor pass the bound") {
  const unsigned seed = 71;
  INFO("seed ", seed);
  std::mt19937 random(seed);
  test::FakeDriver driver;
  const size_t bound = 32u << 20;
  auto pool = std::make_shared<StagingPool>(driver.table, nullptr, bound, bound);
  std::map<std::byte*, StagingBlock> taken;
  for (int step = 0; step < 5000; ++step) {
    if (random() % 2 && !taken.empty()) {
      taken.erase(std::next(taken.begin(), random() % taken.size()));
    } else {
      size_t bytes = 1 + random() % (size_t{1} << (10 + random() % 14));
      StagingBlock block = pool->take(bytes);
      if (!block) continue;
      REQUIRE(block.capacity() >= bytes);
      std::byte* data = block.data();
      auto after = taken.upper_bound(data);
      if (after != taken.end()) REQUIRE(data + block.capacity() <= after->first);
      if (after != taken.begin()) REQUIRE(std::prev(after)->first + std::prev(after)->second.capacity() <= data);
      taken.emplace(data, std::move(block));
    }
    REQUIRE(pool->slab_bytes() <= bound);
    REQUIRE(pool->taken_blocks() == taken.size());
  }
  taken.clear();
  pool.reset();
  CHECK(driver.registered.empty());
}
