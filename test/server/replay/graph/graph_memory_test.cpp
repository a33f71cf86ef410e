#include <doctest/doctest.h>

#include <sys/mman.h>

#include <algorithm>

#include "protocol/wire/limits.hpp"
#include "server/replay/graph/graph_memory.hpp"
#include "server/replay/host_memory/host_regions.hpp"
#include "test/server/replay/fake_session.hpp"

using namespace gpuwire;
using namespace gpuwire::test;
using wire::NoticeOrdinal;
using wire::SessionOrdinal;

namespace {

// The effect of the fake graph's launch.
std::byte* g_target = nullptr;
CUresult CUDAAPI launch_graph(CUgraphExec, CUstream) {
  if (g_target) std::fill(g_target, g_target + 4, std::byte{9});
  return CUDA_SUCCESS;
}

struct Fixture {
  FakeDriver driver;
  FakeSession session{driver};
  uint64_t exec = 0;

  Fixture() {
    g_target = nullptr;
    driver.table.cuGraphLaunch = launch_graph;
    session.enter_primary();
    exec = session.give(wire::HandleKind::graph_exec, reinterpret_cast<void*>(0x5));
  }

  // Returns the block's memory in this process; null: refused with `result`.
  std::byte* create(uint64_t number, uint64_t bytes, int result = CUDA_SUCCESS) {
    uint64_t sequence = session.call<schema::RegionCreate>(SessionOrdinal::graph_memory_create,
                                                           [&](schema::RegionCreate::Builder params) {
                                                             params.setAddress(number);
                                                             params.setBytes(bytes);
                                                           });
    CHECK(session.result(sequence) == result);
    return reinterpret_cast<std::byte*>(session.reply(sequence)->as<schema::GraphMemoryCreateReply>().getPlace());
  }
  void destroy(uint64_t number) {
    session.post<schema::RegionDestroy>(SessionOrdinal::graph_memory_destroy,
                                        [&](auto params) { params.setAddress(number); });
  }
  void write(uint64_t number, uint64_t offset, std::span<const std::byte> bytes) {
    session.post<schema::RegionChange>(
        SessionOrdinal::graph_memory_write,
        [&](schema::RegionChange::Builder params) {
          params.setAddress(number);
          params.setOffset(offset);
        },
        bytes);
  }
  // Creates a region for graphs, of the client's memory at a free address.
  std::byte* create_region(uint64_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    munmap(memory, bytes);
    uint64_t sequence = session.call<schema::RegionCreate>(SessionOrdinal::region_for_graphs,
                                                           [&](schema::RegionCreate::Builder params) {
                                                             params.setAddress(reinterpret_cast<uint64_t>(memory));
                                                             params.setBytes(bytes);
                                                           });
    REQUIRE(session.result(sequence) == CUDA_SUCCESS);
    return static_cast<std::byte*>(memory);
  }
  void open_to_kernels(const std::byte* region) {
    session.post<schema::RegionDestroy>(SessionOrdinal::region_for_kernels,
                                        [&](auto params) { params.setAddress(reinterpret_cast<uint64_t>(region)); });
  }
  void launch(std::initializer_list<uint64_t> blocks, std::initializer_list<uint64_t> ranges = {}) {
    session.post<schema::GraphLaunch>(SessionOrdinal::graph_launch, [&](schema::GraphLaunch::Builder params) {
      params.setExec(exec);
      auto named = params.initRanges(unsigned(ranges.size()));
      unsigned next = 0;
      for (uint64_t word : ranges) named.set(next++, word);
      auto list = params.initBlocks(unsigned(blocks.size()));
      unsigned at = 0;
      for (uint64_t block : blocks) list.set(at++, block);
    });
  }
};

}  // namespace

TEST_CASE_FIXTURE(Fixture, "The client's data are in a block of graph memory, which is registered until it ends") {
  std::byte* memory = create(7, 100);
  REQUIRE(memory);
  CHECK(driver.registered.contains(memory));
  const std::byte bytes[] = {std::byte{1}, std::byte{2}};
  write(7, 98, bytes);
  CHECK(memory[98] == std::byte{1});
  CHECK(memory[99] == std::byte{2});
  write(7, 99, bytes);
  write(8, 0, bytes);
  CHECK(session.failed.size() == 2);
  destroy(7);
  CHECK(driver.registered.empty());
  destroy(7);
  CHECK(session.failed.size() == 3);
}

TEST_CASE_FIXTURE(Fixture, "A graph's data leave once, when the launch is done, and not while none runs") {
  std::byte* memory = create(1, 16);
  g_target = memory + 8;
  launch({1});
  CHECK(session.state().graph_memory().any_running());
  driver.release();
  session.watcher().poll();
  auto sent = session.notices(NoticeOrdinal::graph_memory_data);
  REQUIRE(sent.size() == 1);
  CHECK(sent[0]->bulk == std::vector<std::byte>(4, std::byte{9}));
  CHECK(sent[0]->as<schema::RegionChange>().getAddress() == 1);
  CHECK(sent[0]->as<schema::RegionChange>().getOffset() == 8);
  CHECK_FALSE(session.state().graph_memory().any_running());
  memory[0] = std::byte{1};
  session.state().graph_memory().deliver();
  CHECK(session.notices(NoticeOrdinal::graph_memory_data).size() == 1);
}

TEST_CASE_FIXTURE(Fixture, "A graph's data in a region leave with the end of the launch that names the bytes") {
  std::byte* region = create_region(64 * 1024);
  const auto address = reinterpret_cast<uint64_t>(region);
  g_target = region + 8192;
  launch({}, {address + 8190, 100});
  region[0] = std::byte{1};  // in no range
  driver.release();
  session.watcher().poll();
  auto sent = session.notices(NoticeOrdinal::region_data);
  REQUIRE(sent.size() == 1);
  CHECK(sent[0]->bulk == std::vector<std::byte>(4, std::byte{9}));
  CHECK(sent[0]->as<schema::RegionChange>().getAddress() == address);
  CHECK(sent[0]->as<schema::RegionChange>().getOffset() == 8192);
  region[8192] = std::byte{2};
  session.state().host_regions().deliver();
  CHECK(session.notices(NoticeOrdinal::region_data).size() == 1);
}

TEST_CASE_FIXTURE(Fixture, "All of a region for graphs is compared once it is for kernels, too") {
  std::byte* region = create_region(64 * 1024);
  region[5] = std::byte{1};
  session.state().host_regions().deliver();
  CHECK(session.notices(NoticeOrdinal::region_data).empty());
  open_to_kernels(region);
  open_to_kernels(region);
  session.state().host_regions().deliver();
  CHECK(session.notices(NoticeOrdinal::region_data).size() == 1);
  open_to_kernels(region + 1);
  CHECK(session.failed.size() == 1);
}

TEST_CASE_FIXTURE(Fixture, "A launch that names bytes of no region is refused, and one that lacks a length ends") {
  std::byte* region = create_region(4096);
  const auto address = reinterpret_cast<uint64_t>(region);
  create(1, 16);
  launch({1}, {address + 4000, 97});
  CHECK(session.failed.size() == 1);
  launch({1}, {address, 1, address + 4096, 1});
  CHECK(session.failed.size() == 2);
  CHECK_FALSE(session.state().graph_memory().any_running());
  CHECK_FALSE(session.state().host_regions().any_launched());
  CHECK_THROWS_AS(launch({}, {address}), server::ProtocolFault);
}

TEST_CASE_FIXTURE(Fixture, "A block that a launch uses goes when that is done") {
  std::byte* memory = create(1, 16);
  create(2, 16);
  driver.hold = true;
  launch({1});
  destroy(1);
  CHECK(driver.registered.contains(memory));
  launch({1});
  CHECK(session.failed.size() == 1);
  driver.release();
  session.watcher().poll();
  destroy(2);
  CHECK(driver.registered.empty());
}

TEST_CASE_FIXTURE(Fixture,
                  "A destroyed block stays registered while anything is under way, and another one takes its place") {
  static bool busy;
  busy = true;
  driver.table.cuStreamQuery = [](CUstream) { return busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS; };
  std::byte* memory = create(1, 100);
  memory[3] = std::byte{1};
  destroy(1);
  CHECK(driver.registered.contains(memory));
  CHECK(create(2, 5000) != memory);
  CHECK(create(3, 64) == memory);
  CHECK(memory[3] == std::byte{0});
  destroy(3);
  CHECK(driver.registered.contains(memory));
  busy = false;
  destroy(2);
  CHECK(driver.registered.empty());
}

TEST_CASE_FIXTURE(Fixture, "Blocks that cannot be are refused, and malformed writes end the session") {
  create(1, 0, CUDA_ERROR_INVALID_VALUE);
  create(1, wire::kRegionBytesMax + 1, CUDA_ERROR_INVALID_VALUE);
  create(1, 8);
  create(1, 8, CUDA_ERROR_INVALID_VALUE);
  launch({1, 2});
  CHECK(session.failed.size() == 1);
  CHECK_THROWS_AS(write(1, 0, {}), server::ProtocolFault);
  CHECK_THROWS_AS(write(1, 0, std::vector<std::byte>(wire::kRegionPieceBytes + 1)), server::ProtocolFault);
}

TEST_CASE_FIXTURE(Fixture, "The client's data get through while a graph's data wait for room") {
  std::byte* memory = create(1, 16);
  g_target = memory + 8;
  size_t written = 0;
  session.outbox_.before_notice = [&](NoticeOrdinal ordinal) {
    if (ordinal != NoticeOrdinal::graph_memory_data) return;
    const std::byte bytes[] = {std::byte{5}};
    written += done_elsewhere([&] { session.state().graph_memory().write(1, 0, bytes, {}); });
  };
  launch({1});
  driver.release();
  session.watcher().poll();
  CHECK(written == 1);
  CHECK(memory[0] == std::byte{5});
}
