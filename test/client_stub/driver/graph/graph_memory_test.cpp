#include "client_stub/driver/graph/graph_memory.hpp"

#include <cstring>
#include <vector>

#include "client_stub/driver/handle/handle_table.hpp"
#include "schema/api_memory.capnp.h"
#include "test/client_stub/driver/memory/fixture.hpp"

namespace gpuwire::client {
namespace {

using test::SentFrame;
using wire::SessionOrdinal;

constexpr uint64_t kPlace = 0x7000'0000'0000;

struct GraphProcess : test::DeviceProcess {
  GraphProcess() {
    session->serve(uint32_t(SessionOrdinal::graph_memory_create),
                   [](const SentFrame&, capnp::MessageBuilder& reply, const BulkSink&) {
                     reply.initRoot<schema::GraphMemoryCreateReply>().setPlace(kPlace);
                   });
    session->serve(test::kMemAlloc, [](const SentFrame&, capnp::MessageBuilder& reply, const BulkSink&) {
      reply.initRoot<schema::CuMemAllocV2Results>().setDptr(0x3000'0000'0000);
    });
    REQUIRE(hand::cuMemAlloc_v2(&device, 4096) == CUDA_SUCCESS);
    graph = reinterpret_cast<CUgraph>(handles().create(wire::HandleKind::graph, &test::server_session()));
  }
  size_t count(SessionOrdinal ordinal) const { return session->count(uint32_t(ordinal)); }
  CUDA_MEMCPY3D to_device(const void* from, size_t bytes) const {
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = from;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = device;
    copy.WidthInBytes = bytes;
    copy.Height = copy.Depth = 1;
    return copy;
  }
  CUgraphExec instantiate() {
    CUgraphExec exec = nullptr;
    REQUIRE(hand::cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
    return exec;
  }

  CUdeviceptr device = 0;
  CUgraph graph = nullptr;
};

}  // namespace

TEST_CASE("A launch sends what the program has changed of the memory that the graph copies, before the launch") {
  GraphProcess process;
  std::vector<std::byte> memory(100);
  CUDA_MEMCPY3D copy = process.to_device(memory.data(), memory.size());
  CUgraphNode node = nullptr;
  REQUIRE(hand::cuGraphAddMemcpyNode(&node, process.graph, nullptr, 0, &copy, nullptr) == CUDA_SUCCESS);
  CHECK(process.count(SessionOrdinal::graph_memory_create) == 1);
  CUgraphExec exec = process.instantiate();
  REQUIRE(hand::cuGraphLaunch(exec, nullptr, false) == CUDA_SUCCESS);
  CHECK(process.count(SessionOrdinal::graph_memory_write) == 0);
  memory[40] = std::byte{7};
  REQUIRE(hand::cuGraphLaunch(exec, nullptr, false) == CUDA_SUCCESS);
  REQUIRE(process.count(SessionOrdinal::graph_memory_write) == 1);
  REQUIRE(hand::cuGraphLaunch(exec, nullptr, false) == CUDA_SUCCESS);
  CHECK(process.count(SessionOrdinal::graph_memory_write) == 1);
  CHECK(process.count(SessionOrdinal::graph_launch) == 3);
  auto frames = process.session->frames();
  const SentFrame& write = frames[frames.size() - 3];
  REQUIRE(write.ordinal == uint32_t(SessionOrdinal::graph_memory_write));
  CHECK(write.bulk == std::vector<std::byte>{std::byte{7}});
  write.read<schema::RegionChange>([](auto change) { CHECK(change.getOffset() == 40); });
  // Everything that was sent after the nodes were made is posted.
  for (size_t i = frames.size() - 4; i < frames.size(); ++i) CHECK(frames[i].kind == wire::FrameKind::posted);
}

TEST_CASE("What a graph wrote arrives in the program's memory and is not sent back") {
  GraphProcess process;
  std::vector<std::byte> memory(16);
  CUDA_MEMCPY3D copy = process.to_device(memory.data(), memory.size());
  std::swap(copy.srcMemoryType, copy.dstMemoryType);
  copy.srcDevice = process.device;
  copy.dstHost = memory.data();
  CUgraphNode node = nullptr;
  REQUIRE(hand::cuGraphAddMemcpyNode(&node, process.graph, nullptr, 0, &copy, nullptr) == CUDA_SUCCESS);
  CUgraphExec exec = process.instantiate();
  REQUIRE(hand::cuGraphLaunch(exec, nullptr, false) == CUDA_SUCCESS);
  CHECK(test::server_session().graph_memory.being_written(reinterpret_cast<uint64_t>(memory.data()) + 3, 1));
  uint64_t number = 0;
  for (const SentFrame& frame : process.session->frames()) {
    if (frame.ordinal == uint32_t(SessionOrdinal::graph_memory_create))
      frame.read<schema::RegionCreate>([&](auto create) { number = create.getAddress(); });
  }
  std::vector<std::byte> written(4, std::byte{5});
  BulkSink sink = test::server_session().graph_memory.sink(written.size());
  std::memcpy(sink.data, written.data(), written.size());
  test::server_session().graph_memory.stored(number, 8, {}, written.size());
  CHECK(memory[7] == std::byte{0});
  CHECK(memory[8] == std::byte{5});
  REQUIRE(hand::cuGraphLaunch(exec, nullptr, false) == CUDA_SUCCESS);
  CHECK(process.count(SessionOrdinal::graph_memory_write) == 0);
}

TEST_CASE("The server's block ends with the last graph that uses the memory") {
  GraphProcess process;
  std::vector<std::byte> memory(16), other(16);
  CUDA_MEMCPY3D copy = process.to_device(memory.data(), memory.size());
  CUgraphNode node = nullptr;
  REQUIRE(hand::cuGraphAddMemcpyNode(&node, process.graph, nullptr, 0, &copy, nullptr) == CUDA_SUCCESS);
  CUgraphExec first = process.instantiate(), second = process.instantiate();
  REQUIRE(hand::cuGraphDestroy(process.graph) == CUDA_SUCCESS);
  CUDA_MEMCPY3D changed = process.to_device(other.data(), other.size());
  REQUIRE(hand::cuGraphExecMemcpyNodeSetParams(first, node, &changed, nullptr) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(hand::cuGraphExecDestroy(first) == CUDA_SUCCESS);
  size_t before = process.count(SessionOrdinal::graph_memory_destroy);
  REQUIRE(hand::cuGraphExecDestroy(second) == CUDA_SUCCESS);
  CHECK(process.count(SessionOrdinal::graph_memory_destroy) == before + 1);
}

TEST_CASE("Ranges that overlap in part are refused when a graph writes to one of them") {
  GraphProcess process;
  std::vector<std::byte> memory(64);
  Caller caller = enter(Needs::context);
  auto address = reinterpret_cast<uint64_t>(memory.data());
  GraphUse whole, part, beyond;
  uint64_t place = 0;
  CHECK(test::server_session().graph_memory.use(caller, address, 32, true, whole, place) == CUDA_SUCCESS);
  CHECK(test::server_session().graph_memory.use(caller, address + 8, 8, false, part, place) == CUDA_SUCCESS);
  CHECK(part.block == whole.block);
  CHECK(place == kPlace + 8);
  CHECK(test::server_session().graph_memory.home(place) == address + 8);
  CHECK(test::server_session().graph_memory.use(caller, address + 16, 32, false, beyond, place) ==
        CUDA_ERROR_NOT_SUPPORTED);
  CHECK(test::server_session().graph_memory.use(caller, address + 32, 32, true, beyond, place) == CUDA_SUCCESS);
}

}  // namespace gpuwire::client
