#include "client_stub/driver/state/graph/graph_memory.hpp"

#include <cstring>
#include <vector>

#include "client_stub/driver/state/handle/handle_table.hpp"
#include "client_stub/driver/state/copy/memory_in_flight.hpp"
#include "client_stub/driver/state/host_memory/host_regions.hpp"
#include "schema/api_memory.capnp.h"
#include "schema/session.capnp.h"
#include "test/client_stub/driver/state/memory/fixture.hpp"

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
    REQUIRE(custom::cuMemAlloc_v2(&device, 4096) == CUDA_SUCCESS);
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
    REQUIRE(custom::cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
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
  REQUIRE(custom::cuGraphAddMemcpyNode(&node, process.graph, nullptr, 0, &copy, nullptr) == CUDA_SUCCESS);
  CHECK(process.count(SessionOrdinal::graph_memory_create) == 1);
  CUgraphExec exec = process.instantiate();
  REQUIRE(custom::cuGraphLaunch(exec, nullptr, false) == CUDA_SUCCESS);
  CHECK(process.count(SessionOrdinal::graph_memory_write) == 0);
  memory[40] = std::byte{7};
  REQUIRE(custom::cuGraphLaunch(exec, nullptr, false) == CUDA_SUCCESS);
  REQUIRE(process.count(SessionOrdinal::graph_memory_write) == 1);
  REQUIRE(custom::cuGraphLaunch(exec, nullptr, false) == CUDA_SUCCESS);
  CHECK(process.count(SessionOrdinal::graph_memory_write) == 1);
  CHECK(process.count(SessionOrdinal::graph_launch) == 3);
  auto frames = process.session->frames();
  const SentFrame& write = frames[frames.size() - 3];
  REQUIRE(write.ordinal == uint32_t(SessionOrdinal::graph_memory_write));
  CHECK(write.bulk == std::vector<std::byte>{std::byte{7}});
  write.read<schema::RegionChange>([](auto change) { CHECK(change.getOffset() == 40); });
  // All frames after those for the nodes are posted.
  for (size_t i = frames.size() - 4; i < frames.size(); ++i) CHECK(frames[i].kind == wire::FrameKind::posted);
}

TEST_CASE("Data that a graph wrote arrive in the program's memory and are not sent back") {
  GraphProcess process;
  std::vector<std::byte> memory(16);
  CUDA_MEMCPY3D copy = process.to_device(memory.data(), memory.size());
  std::swap(copy.srcMemoryType, copy.dstMemoryType);
  copy.srcDevice = process.device;
  copy.dstHost = memory.data();
  CUgraphNode node = nullptr;
  REQUIRE(custom::cuGraphAddMemcpyNode(&node, process.graph, nullptr, 0, &copy, nullptr) == CUDA_SUCCESS);
  CUgraphExec exec = process.instantiate();
  REQUIRE(custom::cuGraphLaunch(exec, nullptr, false) == CUDA_SUCCESS);
  CHECK(test::part<client::MemoryInFlight>().being_written(reinterpret_cast<uint64_t>(memory.data()) + 3, 1));
  uint64_t number = 0;
  for (const SentFrame& frame : process.session->frames()) {
    if (frame.ordinal == uint32_t(SessionOrdinal::graph_memory_create))
      frame.read<schema::RegionCreate>([&](auto create) { number = create.getAddress(); });
  }
  std::vector<std::byte> written(4, std::byte{5});
  BulkSink sink = test::part<client::GraphMemory>().sink(written.size());
  std::memcpy(sink.data, written.data(), written.size());
  test::part<client::GraphMemory>().stored(number, 8, {}, written.size());
  CHECK(memory[7] == std::byte{0});
  CHECK(memory[8] == std::byte{5});
  REQUIRE(custom::cuGraphLaunch(exec, nullptr, false) == CUDA_SUCCESS);
  CHECK(process.count(SessionOrdinal::graph_memory_write) == 0);
}

TEST_CASE("The server's block ends with the last graph that uses the memory") {
  GraphProcess process;
  std::vector<std::byte> memory(16), other(16);
  CUDA_MEMCPY3D copy = process.to_device(memory.data(), memory.size());
  CUgraphNode node = nullptr;
  REQUIRE(custom::cuGraphAddMemcpyNode(&node, process.graph, nullptr, 0, &copy, nullptr) == CUDA_SUCCESS);
  CUgraphExec first = process.instantiate(), second = process.instantiate();
  REQUIRE(custom::cuGraphDestroy(process.graph) == CUDA_SUCCESS);
  CUDA_MEMCPY3D changed = process.to_device(other.data(), other.size());
  REQUIRE(custom::cuGraphExecMemcpyNodeSetParams(first, node, &changed, nullptr) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(custom::cuGraphExecDestroy(first) == CUDA_SUCCESS);
  size_t before = process.count(SessionOrdinal::graph_memory_destroy);
  REQUIRE(custom::cuGraphExecDestroy(second) == CUDA_SUCCESS);
  CHECK(process.count(SessionOrdinal::graph_memory_destroy) == before + 1);
}

namespace {

// A launched graph of one copy from the device to `memory`.
struct LaunchedCopy : GraphProcess {
  explicit LaunchedCopy(std::vector<std::byte>& memory, CUstream stream = nullptr) {
    CUDA_MEMCPY3D copy = from_device(memory);
    REQUIRE(custom::cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &copy, nullptr) == CUDA_SUCCESS);
    exec = instantiate();
    REQUIRE(custom::cuGraphLaunch(exec, stream, false) == CUDA_SUCCESS);
  }
  CUDA_MEMCPY3D from_device(std::vector<std::byte>& memory) const {
    CUDA_MEMCPY3D copy = to_device(nullptr, memory.size());
    std::swap(copy.srcMemoryType, copy.dstMemoryType);
    copy.srcDevice = device;
    copy.dstHost = memory.data();
    return copy;
  }
  // The server sends the bytes that the launch has written.
  static void arrive(std::byte value) {
    GraphMemory& memory = test::part<client::GraphMemory>();
    BulkSink sink = memory.sink(1);
    std::memcpy(sink.data, &value, 1);
    memory.stored(1, 0, {}, 1);
  }
  static bool in_use(const std::vector<std::byte>& memory) {
    return test::part<client::MemoryInFlight>().in_use(reinterpret_cast<uint64_t>(memory.data()), memory.size());
  }
  size_t destroyed() const { return count(SessionOrdinal::graph_memory_destroy); }

  CUgraphNode node = nullptr;
  CUgraphExec exec = nullptr;
};

}  // namespace

TEST_CASE("A launch's data arrive when its graph is gone, and the server's block ends with the launch") {
  std::vector<std::byte> memory(16), other(16);
  LaunchedCopy process(memory);
  SUBCASE("destroyed") {
    REQUIRE(custom::cuGraphExecDestroy(process.exec) == CUDA_SUCCESS);
    REQUIRE(custom::cuGraphDestroy(process.graph) == CUDA_SUCCESS);
  }
  SUBCASE("updated") {
    CUDA_MEMCPY3D changed = process.from_device(other);
    REQUIRE(custom::cuGraphMemcpyNodeSetParams(process.node, &changed) == CUDA_SUCCESS);
    CUgraphNode error_node = nullptr;
    CUgraphExecUpdateResult result;
    REQUIRE(custom::cuGraphExecUpdate(process.exec, process.graph, &error_node, &result) == CUDA_SUCCESS);
  }
  SUBCASE("a node was changed in the executable graph, and the graph is destroyed") {
    CUDA_MEMCPY3D changed = process.from_device(other);
    REQUIRE(custom::cuGraphExecMemcpyNodeSetParams(process.exec, process.node, &changed, nullptr) == CUDA_SUCCESS);
    REQUIRE(custom::cuGraphDestroy(process.graph) == CUDA_SUCCESS);
  }
  CHECK(process.destroyed() == 0);
  CHECK(process.in_use(memory));
  process.arrive(std::byte{7});
  CHECK(memory[0] == std::byte{7});
  REQUIRE(custom::cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK_FALSE(process.in_use(memory));
  CHECK(process.destroyed() == 1);
}

TEST_CASE("A launch in a stream that is destroyed has ended when its context has") {
  GraphProcess process;
  CUstream stream = nullptr;
  REQUIRE(custom::cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  std::vector<std::byte> memory(16);
  CUDA_MEMCPY3D copy = process.to_device(nullptr, memory.size());
  std::swap(copy.srcMemoryType, copy.dstMemoryType);
  copy.srcDevice = process.device;
  copy.dstHost = memory.data();
  CUgraphNode node = nullptr;
  REQUIRE(custom::cuGraphAddMemcpyNode(&node, process.graph, nullptr, 0, &copy, nullptr) == CUDA_SUCCESS);
  REQUIRE(custom::cuGraphLaunch(process.instantiate(), stream, false) == CUDA_SUCCESS);
  REQUIRE(custom::cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
  CUstream next = nullptr;  // it reuses the other stream's state
  REQUIRE(custom::cuStreamCreate(&next, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(custom::cuMemcpyDtoDAsync_v2(process.device, process.device, 1, next, false) == CUDA_SUCCESS);
  REQUIRE(custom::cuStreamSynchronize(next, false) == CUDA_SUCCESS);
  const auto address = reinterpret_cast<uint64_t>(memory.data());
  CHECK(test::part<client::MemoryInFlight>().being_written(address, 1));
  REQUIRE(custom::cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK_FALSE(test::part<client::MemoryInFlight>().being_written(address, 1));
}

TEST_CASE("An event that was recorded behind a launch tells that it has ended") {
  std::vector<std::byte> memory(16);
  LaunchedCopy process(memory);
  CUevent event = nullptr;
  REQUIRE(custom::cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
  REQUIRE(custom::cuEventRecord(event, nullptr, false) == CUDA_SUCCESS);
  CHECK(process.in_use(memory));
  REQUIRE(custom::cuEventSynchronize(event) == CUDA_SUCCESS);
  CHECK_FALSE(process.in_use(memory));
}

TEST_CASE("Memory that a launch uses is given up when the launch has ended") {
  GraphProcess process;
  void* pinned = nullptr;
  constexpr size_t kBytes = 256u << 10;
  REQUIRE(custom::cuMemAllocHost_v2(&pinned, kBytes) == CUDA_SUCCESS);
  CUDA_MEMCPY3D copy = process.to_device(pinned, kBytes);
  std::swap(copy.srcMemoryType, copy.dstMemoryType);
  copy.srcDevice = process.device;
  copy.dstHost = pinned;
  copy.WidthInBytes = 64;
  CUgraphNode node = nullptr;
  REQUIRE(custom::cuGraphAddMemcpyNode(&node, process.graph, nullptr, 0, &copy, nullptr) == CUDA_SUCCESS);
  REQUIRE(custom::cuGraphLaunch(process.instantiate(), nullptr, false) == CUDA_SUCCESS);
  const size_t before = process.session->total();
  REQUIRE(custom::cuMemFreeHost(pinned) == CUDA_SUCCESS);
  const auto frames = process.session->frames();
  REQUIRE(frames.size() > before);
  CHECK(frames[before].kind == wire::FrameKind::called);
}

namespace {

// A graph that copies `kBytes` from the middle of pinned memory.
struct PinnedCopy : GraphProcess {
  static constexpr size_t kPinnedBytes = 256u << 10, kOffset = 8192, kBytes = 100'000;

  PinnedCopy() {
    void* memory = nullptr;
    REQUIRE(custom::cuMemAllocHost_v2(&memory, kPinnedBytes) == CUDA_SUCCESS);
    pinned = static_cast<std::byte*>(memory);
    CUDA_MEMCPY3D copy = to_device(pinned + kOffset, kBytes);
    CUgraphNode node = nullptr;
    REQUIRE(custom::cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &copy, nullptr) == CUDA_SUCCESS);
    exec = instantiate();
  }
  void launch() const { REQUIRE(custom::cuGraphLaunch(exec, nullptr, false) == CUDA_SUCCESS); }
  void use_in_kernel() const {
    REQUIRE(custom::cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(pinned), 1, 16, nullptr, false) == CUDA_SUCCESS);
  }

  std::byte* pinned = nullptr;
  CUgraphExec exec = nullptr;
};

}  // namespace

TEST_CASE("A graph copies pinned memory at its own address, and a launch alone sends the bytes that it copies") {
  PinnedCopy process;
  CHECK(process.count(SessionOrdinal::region_for_graphs) == 1);
  CHECK(process.count(SessionOrdinal::graph_memory_create) == 0);
  process.pinned[PinnedCopy::kOffset] = std::byte{1};
  process.pinned[0] = std::byte{2};
  REQUIRE(custom::cuMemsetD8Async(process.device, 1, 16, nullptr, false) == CUDA_SUCCESS);
  CHECK(process.count(SessionOrdinal::region_write) == 0);
  process.launch();
  REQUIRE(process.count(SessionOrdinal::region_write) == 1);
  process.session->newest().read<schema::GraphLaunch>([&](schema::GraphLaunch::Reader launch) {
    CHECK(launch.getBlocks().size() == 0);
    REQUIRE(launch.getRanges().size() == 2);
    CHECK(launch.getRanges()[0] == reinterpret_cast<uint64_t>(process.pinned) + PinnedCopy::kOffset);
    CHECK(launch.getRanges()[1] == PinnedCopy::kBytes);
  });
  process.launch();
  CHECK(process.count(SessionOrdinal::region_write) == 1);
}

TEST_CASE("Pinned memory that a graph copies and a kernel is given a pointer to has one copy at the server") {
  PinnedCopy process;
  process.launch();
  process.pinned[0] = std::byte{2};
  process.use_in_kernel();
  CHECK(process.count(SessionOrdinal::region_for_kernels) == 1);
  CHECK(process.count(SessionOrdinal::region_create) == 0);
  CHECK(process.count(SessionOrdinal::region_write) == 1);
  process.use_in_kernel();
  CHECK(process.count(SessionOrdinal::region_for_kernels) == 1);
  // Any work may use the memory now.
  process.pinned[PinnedCopy::kOffset] = std::byte{3};
  process.launch();
  CHECK(process.count(SessionOrdinal::region_write) == 2);
}

TEST_CASE("Data that a graph writes to pinned memory arrive there") {
  PinnedCopy process;
  process.launch();
  HostRegions& regions = test::part<client::HostRegions>();
  CHECK_FALSE(regions.holds(reinterpret_cast<uint64_t>(process.pinned), 1));
  BulkSink sink = regions.sink(1);
  *static_cast<std::byte*>(sink.data) = std::byte{9};
  regions.stored(reinterpret_cast<uint64_t>(process.pinned), PinnedCopy::kOffset, {}, 1);
  CHECK(process.pinned[PinnedCopy::kOffset] == std::byte{9});
  process.launch();
  CHECK(process.count(SessionOrdinal::region_write) == 0);
}

TEST_CASE("A region for graphs ends with its pinned memory, and begins again when the memory is registered again") {
  GraphProcess process;
  std::vector<std::byte> memory(64);
  auto register_memory = [&] {
    REQUIRE(custom::cuMemHostRegister_v2(memory.data(), memory.size(), 0) == CUDA_SUCCESS);
  };
  register_memory();
  CUDA_MEMCPY3D copy = process.to_device(memory.data(), memory.size());
  CUgraphNode node = nullptr;
  REQUIRE(custom::cuGraphAddMemcpyNode(&node, process.graph, nullptr, 0, &copy, nullptr) == CUDA_SUCCESS);
  CUgraphExec exec = process.instantiate();
  REQUIRE(custom::cuMemHostUnregister(memory.data()) == CUDA_SUCCESS);
  CHECK(process.count(SessionOrdinal::region_destroy) == 1);
  register_memory();
  memory[5] = std::byte{5};
  REQUIRE(custom::cuGraphLaunch(exec, nullptr, false) == CUDA_SUCCESS);
  CHECK(process.count(SessionOrdinal::region_for_graphs) == 2);
  CHECK(process.count(SessionOrdinal::region_write) == 1);
}

TEST_CASE("Ranges of one region that lie near each other are named as one") {
  GraphProcess process;
  void* pinned = nullptr;
  REQUIRE(custom::cuMemAllocHost_v2(&pinned, 1u << 20) == CUDA_SUCCESS);
  CUgraphNode node = nullptr;
  for (size_t at : {0, 64, 32, 4000, 500'000, 500'050}) {
    CUDA_MEMCPY3D part = process.to_device(static_cast<std::byte*>(pinned) + at, 64);
    REQUIRE(custom::cuGraphAddMemcpyNode(&node, process.graph, nullptr, 0, &part, nullptr) == CUDA_SUCCESS);
  }
  REQUIRE(custom::cuGraphLaunch(process.instantiate(), nullptr, false) == CUDA_SUCCESS);
  process.session->newest().read<schema::GraphLaunch>([&](schema::GraphLaunch::Reader launch) {
    REQUIRE(launch.getRanges().size() == 4);
    CHECK(launch.getRanges()[1] == 4064);
    CHECK(launch.getRanges()[2] == reinterpret_cast<uint64_t>(pinned) + 500'000);
    CHECK(launch.getRanges()[3] == 114);
  });
}

TEST_CASE("A graph of many copies is sent by blocks that are named once") {
  GraphProcess process;
  std::vector<std::byte> memory(64);
  CUDA_MEMCPY3D whole = process.to_device(memory.data(), memory.size());
  CUgraphNode node = nullptr;
  REQUIRE(custom::cuGraphAddMemcpyNode(&node, process.graph, nullptr, 0, &whole, nullptr) == CUDA_SUCCESS);
  for (size_t at = 0; at < memory.size(); at += 8) {
    CUDA_MEMCPY3D part = process.to_device(memory.data() + at, 8);
    for (int twice = 0; twice < 2; ++twice)
      REQUIRE(custom::cuGraphAddMemcpyNode(&node, process.graph, nullptr, 0, &part, nullptr) == CUDA_SUCCESS);
  }
  REQUIRE(custom::cuGraphLaunch(process.instantiate(), nullptr, false) == CUDA_SUCCESS);
  process.session->newest().read<schema::GraphLaunch>(
      [](schema::GraphLaunch::Reader launch) { CHECK(launch.getBlocks().size() == 1); });
}

TEST_CASE("Ranges that overlap in part are refused when a graph writes to one of them") {
  GraphProcess process;
  std::vector<std::byte> memory(64);
  Caller caller = enter(Needs::context);
  auto address = reinterpret_cast<uint64_t>(memory.data());
  GraphUse whole, part, beyond;
  uint64_t place = 0;
  CHECK(test::part<client::GraphMemory>().use(caller, address, 32, true, whole, place) == CUDA_SUCCESS);
  CHECK(test::part<client::GraphMemory>().use(caller, address + 8, 8, false, part, place) == CUDA_SUCCESS);
  CHECK(part.block == whole.block);
  CHECK(place == kPlace + 8);
  CHECK(test::part<client::GraphMemory>().home(place) == address + 8);
  CHECK(test::part<client::GraphMemory>().use(caller, address + 16, 32, false, beyond, place) ==
        CUDA_ERROR_NOT_SUPPORTED);
  CHECK(test::part<client::GraphMemory>().use(caller, address + 32, 32, true, beyond, place) == CUDA_SUCCESS);
}

}  // namespace gpuwire::client
