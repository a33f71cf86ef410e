#include "client_stub/driver/state/copy/late_copy.hpp"

#include <cstring>

#include "client_stub/driver/state/copy/copy_rules.hpp"
#include "client_stub/driver/state/copy/memory_in_flight.hpp"
#include "client_stub/driver/state/handle/handle_table.hpp"
#include "client_stub/driver/state/stream/host_callbacks.hpp"
#include "schema/session.capnp.h"
#include "test/client_stub/driver/state/memory/fixture.hpp"

namespace gpuwire::client {
namespace {

using test::SentFrame;
using wire::SessionOrdinal;

constexpr uint64_t kPlaceAtServer = 0x7000'0000'0000, kWord = 0x3000'0000'0000, kTarget = 0x3000'0000'1000;
constexpr uint32_t kMemcpyAsync = 2105;
constexpr size_t kSourceBytes = 256u << 10;

struct PinnedSource : test::DeviceProcess {
  PinnedSource() {
    session->serve(uint32_t(SessionOrdinal::graph_memory_create),
                   [](const SentFrame&, capnp::MessageBuilder& reply, const BulkSink&) {
                     reply.initRoot<schema::GraphMemoryCreateReply>().setPlace(kPlaceAtServer);
                   });
    address_map().insert({.base = kWord, .bytes = 2u << 20, .kind = RangeKind::device});
    REQUIRE(custom::cuMemAllocHost_v2(&memory, kSourceBytes) == CUDA_SUCCESS);
    REQUIRE(custom::cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(custom::cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  }
  SourceRead read(CUstream in, Form form = Form::ordered) const {
    return when_to_read(enter(Needs::context), classify(reinterpret_cast<uint64_t>(memory), kSourceBytes),
                        reinterpret_cast<uint64_t>(in), form);
  }
  void await_word(CUstream in) const {
    REQUIRE(custom::cuStreamWaitValue32_v2(in, kWord, 1, CU_STREAM_WAIT_VALUE_GEQ, false) == CUDA_SUCCESS);
  }
  CUgraphExec graph_with_host_node() const {
    auto* graph = reinterpret_cast<CUgraph>(handles().create(wire::HandleKind::graph, &test::server_session()));
    CUDA_HOST_NODE_PARAMS calls{[](void*) {}, nullptr};
    CUgraphNode node = nullptr;
    CUgraphExec exec = nullptr;
    REQUIRE(custom::cuGraphAddHostNode(&node, graph, nullptr, 0, &calls) == CUDA_SUCCESS);
    REQUIRE(custom::cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
    REQUIRE(custom::cuGraphDestroy(graph) == CUDA_SUCCESS);
    return exec;
  }
  size_t count(SessionOrdinal ordinal) const { return session->count(uint32_t(ordinal)); }

  void* memory = nullptr;
  CUstream stream = nullptr, other = nullptr;
};

}  // namespace

TEST_CASE("A source is read late where the stream may stand until the program acts, until that is known to be over") {
  PinnedSource process;
  CHECK(process.read(process.stream) == SourceRead::now);
  SUBCASE("a word") { process.await_word(process.stream); }
  SUBCASE("a host function") {
    REQUIRE(custom::cuLaunchHostFunc(
                process.stream, [](void*) {}, nullptr, false) == CUDA_SUCCESS);
  }
  SUBCASE("a graph with a host function") {
    REQUIRE(custom::cuGraphLaunch(process.graph_with_host_node(), process.stream, false) == CUDA_SUCCESS);
  }
  CHECK(process.read(process.stream) == SourceRead::late);
  CHECK(process.read(process.other) == SourceRead::now);
  CHECK(process.read(nullptr) == SourceRead::now);  // the stream does not wait for the NULL stream
  REQUIRE(custom::cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(process.read(process.stream) == SourceRead::now);
}

TEST_CASE("A stream that waits for one that stands, stands as well") {
  PinnedSource process;
  process.await_word(process.stream);
  CUevent event = nullptr;
  REQUIRE(custom::cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
  REQUIRE(custom::cuEventRecord(event, process.stream, false) == CUDA_SUCCESS);
  REQUIRE(custom::cuStreamWaitEvent(process.other, event, 0, false) == CUDA_SUCCESS);
  CHECK(process.read(process.other) == SourceRead::late);
  REQUIRE(custom::cuStreamSynchronize(process.other, false) == CUDA_SUCCESS);
  CHECK(process.read(process.other) == SourceRead::now);
}

TEST_CASE("A blocking copy waits for a graph's host function that may change its source") {
  PinnedSource process;
  REQUIRE(custom::cuGraphLaunch(process.graph_with_host_node(), nullptr, false) == CUDA_SUCCESS);
  CHECK(process.read(nullptr, Form::blocking) == SourceRead::settled);
}

TEST_CASE("A late copy leaves its source to a function of ours that the stream comes to") {
  PinnedSource process;
  std::memset(process.memory, 1, kSourceBytes);
  process.await_word(process.stream);
  const size_t before = process.session->total();
  REQUIRE(custom::cuMemcpyHtoDAsync_v2(kTarget, process.memory, kSourceBytes, process.stream, false) == CUDA_SUCCESS);
  CHECK(process.count(SessionOrdinal::copy_to_device) == 0);
  const auto frames = process.session->frames();
  REQUIRE(frames.size() >= before + 3);
  CHECK(frames[before].ordinal == uint32_t(SessionOrdinal::graph_memory_create));
  CHECK(frames[frames.size() - 2].ordinal == uint32_t(SessionOrdinal::host_function));
  CHECK(frames.back().ordinal == kMemcpyAsync);
  uint64_t number = 0;
  frames[frames.size() - 2].read<schema::HostFunction>([&](auto function) { number = function.getCallback(); });

  // The program changes a byte before the stream reaches the copy; then only this byte is sent.
  static_cast<std::byte*>(process.memory)[5] = std::byte{9};
  const size_t sent = process.session->total();
  REQUIRE(test::part<client::HostCallbacks>().reached(number, CUDA_SUCCESS));
  test::part<client::HostCallbacks>().await_none();
  const auto all = process.session->frames();
  REQUIRE(all.size() == sent + 2);
  CHECK(all[sent].ordinal == uint32_t(SessionOrdinal::graph_memory_write));
  CHECK(all[sent].bulk == std::vector<std::byte>{std::byte{9}});
  CHECK(all[sent + 1].ordinal == uint32_t(SessionOrdinal::host_function_done));

  // The copy uses the memory until the stream has passed it.
  CHECK(test::part<client::MemoryInFlight>().in_use(reinterpret_cast<uint64_t>(process.memory), 1));
  CHECK_FALSE(test::part<client::MemoryInFlight>().being_written(reinterpret_cast<uint64_t>(process.memory), 1));
  REQUIRE(custom::cuStreamSynchronize(process.stream, false) == CUDA_SUCCESS);
  CHECK_FALSE(test::part<client::MemoryInFlight>().in_use(reinterpret_cast<uint64_t>(process.memory), 1));
}

TEST_CASE("Where the server cannot have the source, a copy behind a word is sent as it is") {
  PinnedSource process;
  process.session->serve(uint32_t(SessionOrdinal::graph_memory_create),
                         [](const SentFrame&, capnp::MessageBuilder& reply, const BulkSink&) {
                           reply.initRoot<schema::GraphMemoryCreateReply>().setResult(CUDA_ERROR_OUT_OF_MEMORY);
                         });
  process.await_word(process.stream);
  REQUIRE(custom::cuMemcpyHtoDAsync_v2(kTarget, process.memory, 4096, process.stream, false) == CUDA_SUCCESS);
  CHECK(process.count(SessionOrdinal::copy_to_device) == 1);
  CHECK(process.count(SessionOrdinal::host_function) == 0);
}

}  // namespace gpuwire::client
