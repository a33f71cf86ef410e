// Stream capture: the calls.
#include <algorithm>
#include <cstring>
#include <utility>

#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client/session_sends.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/call/generated_support.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/graph/graph.hpp"
#include "client_stub/driver/state/graph/graph_records.hpp"
#include "client_stub/driver/state/memory/cached_memory.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/stream/capture.hpp"
#include "client_stub/driver/state/stream/stream_call.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {
namespace {

bool valid_mode(CUstreamCaptureMode mode) noexcept {
  return mode == CU_STREAM_CAPTURE_MODE_GLOBAL || mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL ||
         mode == CU_STREAM_CAPTURE_MODE_RELAXED;
}

// Returns the call's error if no capture may begin in the stream.
CUresult may_begin(const StreamCall& on, CUstreamCaptureMode mode) noexcept {
  if (CUresult error = argument_first(on.error, valid_mode(mode) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE))
    return error;
  if (on.wire_stream <= wire::kStreamLegacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (on.state->capture.load(std::memory_order_relaxed) != 0) return CUDA_ERROR_ILLEGAL_STATE;
  return CUDA_SUCCESS;
}

CUresult begin_here(const StreamCall& on, CUstreamCaptureMode mode, CUgraph graph) noexcept {
  Capture capture;
  capture.context = on.caller.state;
  capture.origin = on.wire_stream;
  capture.blocking = is_blocking(*on.state);
  capture.mode = mode;
  capture.thread = thread_number();
  capture.graph = graph;
  return on.caller.server->captures.add(std::move(capture), *on.state);
}

// Ends a call that begins a capture. `result` is the server's. If the call reports an earlier call's error, the program
// has no capture, so the capture at the server ends, too.
CUresult begun(const StreamCall& on, CUresult result, CUstreamCaptureMode mode, CUgraph graph) noexcept {
  const CUresult told = leave(on.caller, result);
  if (result == CUDA_SUCCESS && told) {
    CUgraph empty = nullptr;
    if (forward::cuStreamEndCapture(on.caller, on.stream(), &empty) == CUDA_SUCCESS && !graph) {
      forward::cuGraphDestroy(on.caller, empty);
    }
  }
  return told ? told : begin_here(on, mode, graph);
}

// Returns the error of a query of the NULL stream while a stream that synchronises with it captures. The query does not
// harm the capture (CUDA driver API, cuStreamIsCapturing), but the resolution of the stream would, so this check
// precedes it.
CUresult question_of_null_stream(CUstream stream, bool per_thread) noexcept {
  const ContextState* context = t_context;
  bool null_stream = stream == CU_STREAM_LEGACY || (stream == nullptr && !per_thread);
  return null_stream && context && context->blocking_captures.load(std::memory_order_relaxed) != 0 &&
                 !is_sticky(context_health(*context))
             ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
             : CUDA_SUCCESS;
}

CUresult query_capture(const StreamCall& on, CUstreamCaptureStatus& status, uint64_t& id) noexcept {
  if (on.error) return on.error;
  id = on.state->capture.load(std::memory_order_acquire);
  status = id == 0 ? CU_STREAM_CAPTURE_STATUS_NONE : on.caller.server->captures.status(*on.state);
  return CUDA_SUCCESS;
}

// Requests the capture's graph, nodes and edges from the server. Most streams have few open ends; if there are more
// than the request has room for, the request is repeated.
CUresult ask(const StreamCall& on, CaptureAnswer& out) {
  if (!on.caller.session->facts().knows(uint32_t(wire::SessionOrdinal::capture_info))) return CUDA_ERROR_NOT_SUPPORTED;
  size_t room = 8, count = 0;
  do {
    room = std::max(room, count);
    if (room > wire::kListItemsMax) return CUDA_ERROR_NOT_SUPPORTED;
    Candidates graph(wire::HandleKind::graph), nodes(wire::HandleKind::graph_node);
    if (!graph.create(on.caller, 1) || !nodes.create(on.caller, room)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = send::call_capture_info(
        *on.caller.session, on.caller.context,
        {.stream = on.wire_stream, .graph = graph.handles()[0], .nodes = {nodes.handles(), room}},
        [&](schema::CaptureInfoReply::Reader reply) {
          if (reply.getResult()) return;
          count = reply.getCount();
          out.graph = reply.getGraph();
          graph.take_if(out.graph);
          out.nodes.resize(reply.getNodes().size());
          nodes.take(reply.getNodes(), out.nodes.data());
          auto edges = reply.getEdges();
          out.edges.resize(edges.size() / sizeof(CUgraphEdgeData));
          if (edges.size()) std::memcpy(out.edges.data(), edges.begin(), out.edges.size() * sizeof(CUgraphEdgeData));
        });
    if (result) return result;
  } while (count > room);
  on.caller.server->graph_records.note_nodes(out.graph, out.nodes);
  return CUDA_SUCCESS;
}

}  // namespace

namespace hand {

// The server captures in relaxed mode. The modes concern the program's threads, so the client applies them.
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode, bool per_thread) {
  StreamCall on(stream, per_thread);
  if (CUresult error = may_begin(on, mode)) return error;
  const Captures::Changing changing(on.caller.server->captures);
  // Frees of cached blocks would become part of the capture.
  on.caller.server->cached_memory.give_back_of_streams();
  CUresult result = forward::cuStreamBeginCapture_v2(on.caller, on.stream(), CU_STREAM_CAPTURE_MODE_RELAXED);
  return begun(on, result, mode, nullptr);
}

CUresult cuStreamBeginCapture(CUstream stream, bool per_thread) {
  return hand::cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, per_thread);
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode* dependencies,
                                     const CUgraphEdgeData* edges, size_t count, CUstreamCaptureMode mode,
                                     bool per_thread) {
  StreamCall on(stream, per_thread);
  if (CUresult error = may_begin(on, mode)) return error;
  const Captures::Changing changing(on.caller.server->captures);
  // Frees of cached blocks would become part of the capture.
  on.caller.server->cached_memory.give_back_of_streams();
  CUresult result = forward::cuStreamBeginCaptureToGraph(on.caller, on.stream(), graph, dependencies, edges, count,
                                                         CU_STREAM_CAPTURE_MODE_RELAXED);
  return begun(on, result, mode, graph);
}

CUresult cuStreamEndCapture(const StreamCall& on, CUstream, CUgraph* out, bool) {
  Captures& captures = on.caller.server->captures;
  GraphRecords& graph_records = on.caller.server->graph_records;
  Capture capture;
  // The output is null after an error, too (as measured on driver 580, like the following).
  if (out) *out = nullptr;
  if (!captures.find(*on.state, capture)) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture.origin != on.wire_stream) {
    captures.invalidate(capture.id);
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  // A call by a thread other than the one that began the capture ends it, too, with an error.
  bool foreign = capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture.thread != thread_number();
  const Captures::Changing changing(captures);
  // The client's record ends first, so that the stream is not part of an invalid capture when the call is sent.
  captures.remove(capture);
  CUgraph graph = nullptr;
  const CUresult ended = forward::cuStreamEndCapture(on.caller, on.stream(), &graph);
  // The result may be an earlier call's error.
  const CUresult result = leave(on.caller, ended);
  const bool failed = capture.invalidated || foreign;
  // A program that passes no output may have the graph from another call.
  const bool nobodys = !out && !capture.graph && !capture.told_graph;
  if (result == CUDA_SUCCESS && !failed && !nobodys) graph_records.copy(capture.id, reinterpret_cast<uint64_t>(graph));
  forget_graph(on.caller, capture.id);
  if (result == CUDA_SUCCESS && !failed) {
    if (nobodys) forward::cuGraphDestroy(on.caller, graph);
    if (out) *out = graph;
    return CUDA_SUCCESS;
  }
  // The graph is destroyed, even a graph of the program's own (on driver 580 its later uses return
  // CUDA_ERROR_INVALID_VALUE), and with it the handles that the program has got for it.
  const uint64_t lost = capture.graph ? reinterpret_cast<uint64_t>(capture.graph) : capture.told_graph;
  if (ended == CUDA_SUCCESS) forward::cuGraphDestroy(on.caller, capture.graph ? capture.graph : graph);
  if (lost) forget_graph(on.caller, lost);
  // If the call has failed, the server's driver has destroyed the graph with the capture.
  if (lost && ended) {
    graph_records.note_inner(capture.id, lost);
    forget_graph(on.caller, capture.id);
  }
  if (capture.invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  return result ? result : CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status, bool per_thread) {
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = question_of_null_stream(stream, per_thread)) return error;
  StreamCall on(stream, per_thread);
  uint64_t id = 0;
  return query_capture(on, *status, id);
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                   const CUgraphNode** dependencies, const CUgraphEdgeData** edges, size_t* count,
                                   bool per_thread) {
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = question_of_null_stream(stream, per_thread)) return error;
  StreamCall on(stream, per_thread);
  uint64_t found = 0;
  if (CUresult error = query_capture(on, *status, found)) return error;
  if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (id) *id = found;
  if (!(graph || dependencies || edges || count)) return CUDA_SUCCESS;
  CaptureAnswer told;
  if (CUresult error = ask(on, told)) {
    if (error != CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) return leave(on.caller, error);
    on.caller.server->captures.invalidate(found);
    *status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    return CUDA_SUCCESS;
  }
  // A program that does not ask for the data of edges must not lose them.
  if (!edges && dependencies && told.edges_matter()) return CUDA_ERROR_LOSSY_QUERY;
  bool kept = on.caller.server->captures.keep(found, on.wire_stream, std::move(told), [&](const CaptureAnswer& known) {
    if (graph) *graph = reinterpret_cast<CUgraph>(known.graph);
    if (dependencies) *dependencies = known.nodes.empty() ? nullptr : known.nodes.data();
    if (edges) *edges = known.edges.empty() ? nullptr : known.edges.data();
    if (count) *count = known.nodes.size();
  });
  return kept ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                   const CUgraphNode** dependencies, size_t* count, bool per_thread) {
  return hand::cuStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, nullptr, count, per_thread);
}

CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, bool per_thread) {
  return hand::cuStreamGetCaptureInfo_v3(stream, status, id, nullptr, nullptr, nullptr, nullptr, per_thread);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  // The driver accepts an unknown mode, too (as measured on driver 580): it is neither global nor relaxed.
  if (!mode) return CUDA_ERROR_INVALID_VALUE;
  ThreadState* thread = thread_state();
  if (!thread) return CUDA_ERROR_OUT_OF_MEMORY;
  std::swap(thread->capture_mode, *mode);
  return CUDA_SUCCESS;
}

}  // namespace hand
}  // namespace gpuwire::client
