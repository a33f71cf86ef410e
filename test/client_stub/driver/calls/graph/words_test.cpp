// Words that streams and graphs write and await, in memory that holds such words and in memory that does not.
#include <vector>

#include "client_stub/driver/state/graph/graph_records.hpp"
#include "client_stub/driver/state/handle/handle_table.hpp"
#include "schema/api_capture.capnp.h"
#include "test/client_stub/driver/state/memory/fixture.hpp"

namespace gpuwire::client {
namespace {

using wire::SessionOrdinal;

constexpr uint32_t kEndCapture = 2602;  // protocol/api/capture.toml
constexpr uint64_t kGood = 0x7000'0000'0000, kBad = 0x7000'0010'0000;

CUstreamBatchMemOpParams write_to(CUdeviceptr word) {
  CUstreamBatchMemOpParams out{};
  out.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  out.writeValue.address = word;
  return out;
}

CUgraph new_graph() {
  return reinterpret_cast<CUgraph>(handles().create(wire::HandleKind::graph, &test::server_session()));
}

// `kind`: of the memory at kBad.
struct WordProcess : test::DeviceProcess {
  explicit WordProcess(RangeKind kind) {
    address_map().insert({.base = kGood, .bytes = 4096, .kind = RangeKind::device, .server = &test::server_session()});
    address_map().insert({.base = kBad, .bytes = 4096, .kind = kind, .server = &test::server_session()});
    REQUIRE(custom::cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    session->serve(kEndCapture, [](const test::SentFrame& frame, capnp::MessageBuilder& reply, const BulkSink&) {
      frame.read<schema::CuStreamEndCaptureParams>(
          [&](auto params) { reply.initRoot<schema::CuStreamEndCaptureResults>().setPhGraph(params.getPhGraph()); });
    });
  }
  // The server's driver refuses what was posted before.
  void refuse() const { session->answer_with(uint32_t(SessionOrdinal::ping), CUDA_ERROR_INVALID_VALUE); }
  size_t verdicts() const { return session->count(uint32_t(SessionOrdinal::ping)); }
  CUresult write(CUdeviceptr word) const { return custom::cuStreamWriteValue32_v2(stream, word, 1, 0, false); }
  CUresult write_in_batch(CUdeviceptr word) const {
    CUstreamBatchMemOpParams operations[] = {write_to(kGood), write_to(word)};
    return custom::cuStreamBatchMemOp_v2(stream, 2, operations, 0, false);
  }
  CUgraph graph_with(CUdeviceptr word, CUgraphNode* node = nullptr) const {
    CUgraph graph = new_graph();
    CUstreamBatchMemOpParams operation = write_to(word);
    const CUDA_BATCH_MEM_OP_NODE_PARAMS parameters{nullptr, 1, &operation, 0};
    CUgraphNode made = nullptr;
    REQUIRE(custom::cuGraphAddBatchMemOpNode(node ? node : &made, graph, nullptr, 0, &parameters) == CUDA_SUCCESS);
    return graph;
  }
  CUgraphExec instantiate(CUgraph graph) const {
    CUgraphExec exec = nullptr;
    REQUIRE(custom::cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
    return exec;
  }
  CUresult launch(CUgraphExec exec) const { return custom::cuGraphLaunch(exec, stream, false); }

  CUstream stream = nullptr;
};

constexpr RangeKind kWithoutWords[] = {RangeKind::pool, RangeKind::managed, RangeKind::managed_variable,
                                       RangeKind::graph};

}  // namespace

TEST_CASE("A word in memory of a pool or a graph, or in managed memory, is the server's driver's to refuse at once") {
  for (RangeKind kind : kWithoutWords) {
    WordProcess process(kind);
    process.refuse();
    CHECK(process.write(kGood) == CUDA_SUCCESS);
    CHECK(process.write_in_batch(kGood) == CUDA_SUCCESS);
    CHECK(process.verdicts() == 0);
    CHECK(process.write(kBad) == CUDA_ERROR_INVALID_VALUE);
    CHECK(custom::cuStreamWaitValue64_v2(process.stream, kBad + 8, 0, 0, false) == CUDA_ERROR_INVALID_VALUE);
    CHECK(process.write_in_batch(kBad) == CUDA_ERROR_INVALID_VALUE);
    CHECK(process.verdicts() == 3);
  }
}

TEST_CASE("Such words are captured without a question, and the launch of the graph waits for the driver's verdict") {
  for (bool batch : {false, true}) {
    WordProcess process(RangeKind::pool);
    process.refuse();
    REQUIRE(custom::cuStreamBeginCapture_v2(process.stream, CU_STREAM_CAPTURE_MODE_RELAXED, false) == CUDA_SUCCESS);
    CHECK((batch ? process.write_in_batch(kBad) : process.write(kBad)) == CUDA_SUCCESS);
    CUgraph graph = nullptr;
    REQUIRE(custom::cuStreamEndCapture(process.stream, &graph, false) == CUDA_SUCCESS);
    CUgraphExec exec = process.instantiate(graph);
    CHECK(process.verdicts() == 0);
    CHECK(process.launch(exec) == CUDA_ERROR_INVALID_VALUE);
    CHECK(process.verdicts() == 1);
  }
}

TEST_CASE("The launch of a graph with words is not waited for where the memory holds them") {
  WordProcess process(RangeKind::pool);
  process.refuse();
  CHECK(process.launch(process.instantiate(process.graph_with(kGood))) == CUDA_SUCCESS);
  CHECK(process.verdicts() == 0);
}

TEST_CASE("Everything that is made from a graph with words that may be refused has its launches judged") {
  WordProcess process(RangeKind::graph);
  process.refuse();
  CUgraphNode node = nullptr;
  CUgraph bad = process.graph_with(kBad, &node), good = process.graph_with(kGood);
  CHECK(process.launch(process.instantiate(bad)) == CUDA_ERROR_INVALID_VALUE);

  CUgraph clone = nullptr, parent = new_graph();
  REQUIRE(custom::cuGraphClone(&clone, bad) == CUDA_SUCCESS);
  CHECK(process.launch(process.instantiate(clone)) == CUDA_ERROR_INVALID_VALUE);

  CUgraphNode child = nullptr;
  REQUIRE(custom::cuGraphAddChildGraphNode(&child, parent, nullptr, 0, bad) == CUDA_SUCCESS);
  CHECK(process.launch(process.instantiate(parent)) == CUDA_ERROR_INVALID_VALUE);

  CUgraphExec updated = process.instantiate(good);
  CUgraphNode culprit = nullptr;
  CUgraphExecUpdateResult outcome{};
  REQUIRE(custom::cuGraphExecUpdate(updated, bad, &culprit, &outcome) == CUDA_SUCCESS);
  CHECK(process.launch(updated) == CUDA_ERROR_INVALID_VALUE);

  CUgraphExec set = process.instantiate(good);
  CUstreamBatchMemOpParams operation = write_to(kBad);
  const CUDA_BATCH_MEM_OP_NODE_PARAMS parameters{nullptr, 1, &operation, 0};
  REQUIRE(custom::cuGraphExecBatchMemOpNodeSetParams(set, node, &parameters) == CUDA_SUCCESS);
  CHECK(process.launch(set) == CUDA_ERROR_INVALID_VALUE);

  CUgraphNode changed = nullptr;
  CUgraph later = process.graph_with(kGood, &changed);
  REQUIRE(custom::cuGraphBatchMemOpNodeSetParams(changed, &parameters) == CUDA_SUCCESS);
  CHECK(process.launch(process.instantiate(later)) == CUDA_ERROR_INVALID_VALUE);

  CUgraphNodeParams generic{};
  generic.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  generic.memOp.count = 1;
  generic.memOp.paramArray = &operation;
  CUgraphExec last = process.instantiate(good);
  REQUIRE(custom::cuGraphExecNodeSetParams(last, node, &generic) == CUDA_SUCCESS);
  CHECK(process.launch(last) == CUDA_ERROR_INVALID_VALUE);
  CHECK(process.launch(process.instantiate(good)) == CUDA_SUCCESS);
}

TEST_CASE(
    "A node that awaits a word has the launches of its graph stand for the program, and one that writes has not") {
  WordProcess process(RangeKind::pool);
  GraphRecords& records = test::part<GraphRecords>();
  CUgraph writing = process.graph_with(kGood);
  CHECK(records.awaits_of(reinterpret_cast<uint64_t>(writing)) == Awaits::nothing);
  CUstreamBatchMemOpParams operation{};
  operation.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operation.waitValue.address = kGood;
  const CUDA_BATCH_MEM_OP_NODE_PARAMS parameters{nullptr, 1, &operation, 0};
  CUgraphNode node = nullptr;
  REQUIRE(custom::cuGraphAddBatchMemOpNode(&node, writing, nullptr, 0, &parameters) == CUDA_SUCCESS);
  CHECK(records.awaits_of(reinterpret_cast<uint64_t>(writing)) == Awaits::program);
}

}  // namespace gpuwire::client
