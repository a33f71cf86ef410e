// The cost of a call does not depend on the program's other objects and work in flight. The tests count instructions
// and frames, and measure no time.
#include <cstring>
#include <vector>

#include "client_stub/driver/state/copy/pending_copies.hpp"
#include "client_stub/driver/state/handle/handle_table.hpp"
#include "client_stub/driver/state/host_memory/pinned_pointers.hpp"
#include "schema/api_memory.capnp.h"
#include "schema/session.capnp.h"
#include "test/client_stub/driver/state/memory/keeping.hpp"
#include "test/support/instruction_count.hpp"

namespace gpuwire::client {
namespace {

using wire::SessionOrdinal;

// A program with 4 MiB of memory on the device.
struct CountedProgram : Keeping {
  static constexpr size_t kDeviceBytes = 4u << 20;

  CountedProgram() {
    session->serve(uint32_t(SessionOrdinal::graph_memory_create),
                   [this](const test::SentFrame&, capnp::MessageBuilder& reply, const BulkSink&) {
                     reply.initRoot<schema::GraphMemoryCreateReply>().setPlace(new_address());
                   });
    device = allocate(kDeviceBytes);
  }
  ~CountedProgram() {
    for (auto& [number, descriptor] : session->given) close(descriptor);
  }

  CUgraph new_graph() const {
    return reinterpret_cast<CUgraph>(handles().create(wire::HandleKind::graph, &test::server_session()));
  }
  static CUgraphExec instantiate(CUgraph graph) {
    CUgraphExec exec = nullptr;
    REQUIRE(custom::cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
    return exec;
  }
  std::byte* allocate_pinned(size_t bytes) const {
    void* memory = nullptr;
    REQUIRE(custom::cuMemAllocHost_v2(&memory, bytes) == CUDA_SUCCESS);
    return static_cast<std::byte*>(memory);
  }
  void work_on(CUdeviceptr memory) const {
    REQUIRE(custom::cuMemsetD8Async(memory, 1, 64, nullptr, false) == CUDA_SUCCESS);
  }
  static void finish_all_work() { REQUIRE(custom::cuCtxSynchronize() == CUDA_SUCCESS); }
  // Returns the frames that a call sends: their ordinals and kinds.
  template <class Call>
  std::vector<std::pair<uint32_t, wire::FrameKind>> frames_of(Call&& call) const {
    const size_t before = session->total();
    call();
    std::vector<std::pair<uint32_t, wire::FrameKind>> sent;
    const auto frames = session->frames();
    for (size_t i = before; i < frames.size(); ++i) sent.emplace_back(frames[i].ordinal, frames[i].kind);
    return sent;
  }

  CUdeviceptr device = 0;
};

}  // namespace

TEST_CASE("A graph with a host function that has run and is destroyed leaves no trace in what later calls send") {
  CountedProgram program;
  auto step = [&] {
    const CUdeviceptr memory = program.allocate();
    program.work_on(memory);
    program.free(memory);
  };
  // Returns the frames of a step with a cached block and without work in flight.
  auto frames_of_step = [&] {
    for (int i = 0; i < 2; ++i) {
      CountedProgram::finish_all_work();
      step();
    }
    CountedProgram::finish_all_work();
    return program.frames_of(step);
  };
  const auto before = frames_of_step();
  CHECK(before.size() == 2);
  for (const auto& [ordinal, kind] : before) CHECK(kind == wire::FrameKind::posted);
  CUgraph graph = program.new_graph();
  CUDA_HOST_NODE_PARAMS calls{[](void*) {}, nullptr};
  CUgraphNode node = nullptr;
  REQUIRE(custom::cuGraphAddHostNode(&node, graph, nullptr, 0, &calls) == CUDA_SUCCESS);
  CUgraphExec exec = CountedProgram::instantiate(graph);
  CHECK(frames_of_step() == before);
  REQUIRE(custom::cuGraphLaunch(exec, nullptr, false) == CUDA_SUCCESS);
  // A free waits for the function while it may run.
  CHECK(program.frames_of(step) != before);
  CHECK(frames_of_step() == before);
  REQUIRE(custom::cuGraphExecDestroy(exec) == CUDA_SUCCESS);
  REQUIRE(custom::cuGraphDestroy(graph) == CUDA_SUCCESS);
  CHECK(frames_of_step() == before);
}

TEST_CASE("A stream that does not wait for the NULL stream, also one that is gone, changes no blocking copy") {
  CountedProgram program;
  program.session->facts().orders_uploads = true;
  for (size_t bytes : {size_t{4096}, size_t{2} << 20}) {
    CAPTURE(bytes);
    const std::vector<std::byte> source(bytes, std::byte{3});
    auto copy = [&] {
      REQUIRE(custom::cuMemcpyHtoD_v2(program.device, source.data(), source.size(), false) == CUDA_SUCCESS);
    };
    copy();
    const auto before = program.frames_of(copy);
    for (const auto& [ordinal, kind] : before) CHECK(kind == wire::FrameKind::posted);
    CUstream stream = program.new_stream(CU_STREAM_NON_BLOCKING);
    CHECK(program.frames_of(copy) == before);
    REQUIRE(custom::cuMemsetD8Async(program.device, 1, 64, stream, false) == CUDA_SUCCESS);
    CHECK(program.frames_of(copy) == before);
    REQUIRE(custom::cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
    CHECK(program.frames_of(copy) == before);
  }
}

TEST_CASE(
    "Beside pinned memory in shared pages, and a registered buffer unknown to the device, a launch costs the same" *
    doctest::skip(!test::kCountsInstructions)) {
  constexpr size_t kBlockBytes = 4096;
  auto launches_beside = [&](size_t blocks, bool device_knows_blocks) {
    CountedProgram program;
    program.session->road = "shm";
    std::vector<std::byte> registered(kBlockBytes);
    REQUIRE(custom::cuMemHostRegister_v2(registered.data(), registered.size(), 0) == CUDA_SUCCESS);
    for (size_t i = 0; i < blocks; ++i) {
      std::byte* block = program.allocate_pinned(kBlockBytes);
      if (device_knows_blocks) program.work_on(reinterpret_cast<CUdeviceptr>(block));
      for (auto& [number, descriptor] : program.session->given) close(descriptor);
      program.session->given.clear();
    }
    CHECK(test::part<client::PinnedPointers>().sent_tables(0).size() == (device_knows_blocks ? blocks : 0));
    auto launch = [&] { program.work_on(program.device); };
    launch();
    return test::count_instructions(launch, [] {});
  };
  for (bool known : {false, true}) {
    CAPTURE(known);
    const size_t few = launches_beside(16, known), many = launches_beside(256, known);
    CHECK(many <= 2 * few);
  }
}

TEST_CASE("A launch of a graph with copies of the program's memory costs so much for each, however many they are" *
          doctest::skip(!test::kCountsInstructions)) {
  constexpr size_t kApartBytes = 256, kCopyBytes = 64;
  auto launch_with = [&](size_t copies) {
    CountedProgram program;
    std::vector<std::byte> memory(copies * kApartBytes);
    CUgraph graph = program.new_graph();
    for (size_t i = 0; i < copies; ++i) {
      CUDA_MEMCPY3D copy{};
      copy.srcMemoryType = CU_MEMORYTYPE_HOST;
      copy.srcHost = memory.data() + i * kApartBytes;
      copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
      copy.dstDevice = program.device + i * kCopyBytes;
      copy.WidthInBytes = kCopyBytes;
      copy.Height = copy.Depth = 1;
      CUgraphNode node = nullptr;
      REQUIRE(custom::cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &copy, nullptr) == CUDA_SUCCESS);
    }
    CUgraphExec exec = CountedProgram::instantiate(graph);
    auto launch = [&] { REQUIRE(custom::cuGraphLaunch(exec, nullptr, false) == CUDA_SUCCESS); };
    launch();
    CountedProgram::finish_all_work();
    return test::count_instructions(launch, CountedProgram::finish_all_work);
  };
  constexpr size_t kFew = 32, kMany = 256;
  const size_t few = launch_with(kFew), many = launch_with(kMany);
  CHECK(many <= 2 * (kMany / kFew) * few);
}

TEST_CASE("A copy from pinned memory costs the same beside few and many copies that are to bring something elsewhere" *
          doctest::skip(!test::kCountsInstructions)) {
  constexpr size_t kCopyBytes = 256;
  auto copy_beside = [&](size_t copies) {
    CountedProgram program;
    std::byte *to = program.allocate_pinned((copies + 1) * 2 * kCopyBytes), *from = program.allocate_pinned(kCopyBytes);
    for (size_t i = 0; i < copies; ++i) {
      REQUIRE(custom::cuMemcpyDtoHAsync_v2(to + i * 2 * kCopyBytes, program.device, kCopyBytes, nullptr, false) ==
              CUDA_SUCCESS);
    }
    CHECK(test::part<client::PendingCopies>().touches(to, 1) == (copies != 0));
    auto copy = [&] {
      REQUIRE(custom::cuMemcpyHtoDAsync_v2(program.device, from, kCopyBytes, nullptr, false) == CUDA_SUCCESS);
    };
    copy();
    const size_t instructions = test::count_instructions(copy, [] {});
    test::part<client::PendingCopies>().ended(SessionEnd::lost);
    return instructions;
  };
  const size_t few = copy_beside(16), many = copy_beside(4096);
  CHECK(many <= 2 * few);
}

}  // namespace gpuwire::client
