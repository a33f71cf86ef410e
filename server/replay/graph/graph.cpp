// Graphs inside other graphs or of captures, which the client may not destroy; the text form of graphs.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "schema/api_capture.capnp.h"
#include "schema/api_graph.capnp.h"
#include "server/driver_table.hpp"
#include "server/custom.hpp"
#include "server/replay/call/generated_support.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/session/replay_state.hpp"
#include "server/session_handlers.hpp"

namespace gpuwire::server {

namespace {

// The part of a graph's text in one reply; the client asks for the rest.
constexpr size_t kTextPieceBytes = 256u << 10;
constexpr size_t kTextBytesMax = 64u << 20;

// Returns the existing handle of an inner graph, or else gives it the offered one.
uint64_t give_inner(Replay& replay, Incoming& incoming, uint64_t offered, CUgraph graph) {
  uint64_t given = incoming.give(wire::HandleKind::graph, offered, word(graph));
  if (given && given == offered) replay.state().inner_graphs().insert(given);
  return given;
}

// Has the driver write a graph's text to a memory file, which it opens as /proc/self/fd/N.
CUresult text_of(Replay& replay, CUgraph graph, unsigned flags, std::string& out) {
  int file = memfd_create("graph", MFD_CLOEXEC);
  if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  CUresult result = drive(replay.driver().cuGraphDebugDotPrint, graph, path.c_str(), flags);
  char piece[4096];
  while (result == CUDA_SUCCESS && out.size() < kTextBytesMax) {
    ssize_t got = ::pread(file, piece, sizeof piece, off_t(out.size()));
    if (got < 0) result = CUDA_ERROR_OPERATING_SYSTEM;
    if (got <= 0) break;
    out.append(piece, size_t(got));
  }
  ::close(file);
  return result;
}

}  // namespace

namespace custom {

void cuGraphChildGraphNodeGetGraph(Replay& replay, Call& call) {
  Incoming incoming(replay, call, false);
  auto params = call.message.getRoot<schema::CuGraphChildGraphNodeGetGraphParams>();
  auto node = from_word<CUgraphNode>(incoming.handle(wire::HandleKind::graph_node, params.getHNode(), false));
  CUgraph graph = nullptr;
  CUresult result = incoming.ready(replay.driver().cuGraphChildGraphNodeGetGraph != nullptr);
  if (!result) result = replay.driver().cuGraphChildGraphNodeGetGraph(node, &graph);
  ReplyMessage<schema::CuGraphChildGraphNodeGetGraphResults> message(0, 0);
  if (!result) message.results().setPhGraph(give_inner(replay, incoming, params.getPhGraph(), graph));
  incoming.reply(message.message(), message.results(), result);
}

// The capture owns the graph until it has ended successfully: the driver destroys the graph with a failed capture, and
// the client then drops the handle by graph_forget.
void cuStreamBeginCaptureToGraph(Replay& replay, Call& call) {
  Incoming incoming(replay, call, false);
  auto params = call.message.getRoot<schema::CuStreamBeginCaptureToGraphParams>();
  auto stream = from_word<CUstream>(incoming.stream(params.getHStream()));
  auto graph = from_word<CUgraph>(incoming.handle(wire::HandleKind::graph, params.getHGraph(), false));
  size_t count = incoming.count(params.getNumDependencies(), sizeof(uint64_t));
  Room<CUgraphNode> dependencies =
      incoming.handles<CUgraphNode>(wire::HandleKind::graph_node, params.getDependencies(), count);
  size_t data_count = incoming.count(params.hasDependencyData() ? count : size_t(0), sizeof(CUgraphEdgeData));
  Items<CUgraphEdgeData> data = incoming.items<CUgraphEdgeData>(params.getDependencyData(), data_count);
  auto function = replay.driver().cuStreamBeginCaptureToGraph;
  CUresult result = incoming.ready(function != nullptr);
  if (!result)
    result = function(stream, graph, dependencies.data(), params.hasDependencyData() ? data.data() : nullptr, count,
                      CUstreamCaptureMode(params.getMode()));
  if (!result) replay.state().inner_graphs().insert(params.getHGraph());
  incoming.finish(result);
}

void cuStreamEndCapture(Replay& replay, Call& call) {
  Incoming incoming(replay, call, false);
  auto params = call.message.getRoot<schema::CuStreamEndCaptureParams>();
  auto stream = from_word<CUstream>(incoming.stream(params.getHStream()));
  CUgraph graph = nullptr;
  CUresult result = incoming.ready(replay.driver().cuStreamEndCapture != nullptr);
  if (!result) result = replay.driver().cuStreamEndCapture(stream, &graph);
  ReplyMessage<schema::CuStreamEndCaptureResults> message(0, 0);
  if (!result) {
    // The client owns the captured graph from here on, even if it already has a handle from the time of the capture.
    uint64_t given = incoming.give(wire::HandleKind::graph, params.getPhGraph(), word(graph));
    replay.state().inner_graphs().erase(given);
    message.results().setPhGraph(given);
  }
  incoming.reply(message.message(), message.results(), result);
}

}  // namespace custom

void graph_forget(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::GraphForget>();
  for (uint64_t node : params.getNodes()) replay.handles().erase(wire::HandleKind::graph_node, node);
  for (uint64_t graph : params.getGraphs()) {
    if (replay.state().inner_graphs().erase(graph)) replay.handles().erase(wire::HandleKind::graph, graph);
  }
  finish(replay, call, CUDA_SUCCESS);
}

void graph_text(Replay& replay, Call& call) {
  Incoming incoming(replay, call, false);
  auto params = call.message.getRoot<schema::GraphText>();
  auto graph = from_word<CUgraph>(incoming.handle(wire::HandleKind::graph, params.getGraph(), false));
  std::string text;
  CUresult result = incoming.ready(true);
  if (!result) result = text_of(replay, graph, params.getFlags(), text);
  size_t offset = std::min<uint64_t>(params.getOffset(), text.size());
  size_t bytes = std::min(kTextPieceBytes, text.size() - offset);
  ReplyMessage<schema::GraphTextReply> message(bytes, 1);
  message.results().setBytes(text.size());
  message.results().setText(kj::arrayPtr(reinterpret_cast<const capnp::byte*>(text.data()) + offset, bytes));
  incoming.reply(message.message(), message.results(), result);
}

void capture_info(Replay& replay, Call& call) {
  Incoming incoming(replay, call, false);
  auto params = call.message.getRoot<schema::CaptureInfo>();
  auto offered = params.getNodes();
  incoming.count(offered.size(), sizeof(uint64_t));
  auto stream = from_word<CUstream>(incoming.stream(params.getStream()));
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  const CUgraphNode* nodes = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  size_t count = 0;
  CUresult result = incoming.ready(replay.driver().cuStreamGetCaptureInfo_v3 != nullptr);
  if (!result) result = replay.driver().cuStreamGetCaptureInfo_v3(stream, &status, &id, &graph, &nodes, &edges, &count);
  if (!result && status != CU_STREAM_CAPTURE_STATUS_ACTIVE) result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  std::vector<uint64_t> given;
  if (!result && count <= offered.size())
    given = incoming.give_all(wire::HandleKind::graph_node, offered, nodes, count);
  size_t edge_bytes = edges ? given.size() * sizeof(CUgraphEdgeData) : 0;
  ReplyMessage<schema::CaptureInfoReply> message(given.size() * sizeof(uint64_t) + edge_bytes, 2);
  if (!result) {
    message.results().setGraph(give_inner(replay, incoming, params.getGraph(), graph));
    message.results().setCount(count);
    set_words(message.results().initNodes(unsigned(given.size())), given);
    if (edge_bytes) message.results().setEdges(kj::arrayPtr(reinterpret_cast<const capnp::byte*>(edges), edge_bytes));
  }
  incoming.reply(message.message(), message.results(), result);
}

}  // namespace gpuwire::server
