#include "client_stub/driver/capture.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <vector>

#include "client/forward.hpp"
#include "client/hand.hpp"
#include "client_stub/driver/caller.hpp"
#include "client_stub/driver/generated_support.hpp"
#include "client_stub/driver/graph.hpp"
#include "client_stub/driver/graph_records.hpp"
#include "client_stub/driver/process.hpp"
#include "client_stub/driver/stream_call.hpp"
#include "client_stub/session/call.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {
namespace {

// What a program was told of a capture: the graph, and the nodes that the stream's next work comes behind.
struct Told {
  uint64_t graph = 0;
  std::vector<CUgraphNode> nodes;
  std::vector<CUgraphEdgeData> edges;  // empty: plain ones

  bool edges_matter() const {
    return std::any_of(edges.begin(), edges.end(), [](const CUgraphEdgeData& edge) { return edge.from_port || edge.to_port || edge.type; });
  }
};

struct Capture {
  uint64_t id = 0;
  ContextState* context = nullptr;
  uint64_t origin = 0;           // wire stream
  bool blocking = false;         // the origin synchronises with the NULL stream
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  const ThreadState* thread = nullptr;
  CUgraph graph = nullptr;       // cuStreamBeginCaptureToGraph: the program's own
  bool invalidated = false;
  uint64_t told_graph = 0;             // the handle that the program was given for the graph, 0: none
  std::map<uint64_t, Told> told;       // by wire stream
};

// Captures under way. One leaf lock; never destroyed.
class Captures {
 public:
  std::mutex mutex;
  std::vector<Capture> active;  // a handful
  std::atomic<uint32_t> count{0};  // active.size(), for the check that nothing is captured; relaxed: a capture that another thread is
                                   // just starting may or may not be seen
  uint64_t next_id = 1;

  Capture* find(uint64_t id) noexcept {
    for (Capture& capture : active) {
      if (capture.id == id) return &capture;
    }
    return nullptr;
  }
};

Captures& captures() noexcept {
  alignas(Captures) static std::byte storage[sizeof(Captures)];
  static auto* const all = new (storage) Captures;
  return *all;
}

CUresult register_capture(const StreamCall& on, CUstreamCaptureMode mode, CUgraph graph) noexcept {
  Captures& all = captures();
  std::lock_guard lock(all.mutex);
  Capture capture;
  capture.id = all.next_id++;
  capture.context = on.caller.state;
  capture.origin = on.wire_stream;
  capture.blocking = !(on.state->flags & CU_STREAM_NON_BLOCKING);
  capture.mode = mode;
  capture.thread = thread_state();
  capture.graph = graph;
  try {
    all.active.push_back(capture);
  } catch (...) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  all.count.store(uint32_t(all.active.size()), std::memory_order_relaxed);
  on.state->capture.store(capture.id, std::memory_order_release);
  on.caller.state->captures.fetch_add(1, std::memory_order_relaxed);
  if (capture.blocking) on.caller.state->blocking_captures.fetch_add(1, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

// Takes the capture out, and all streams with it.
void unregister_capture(const Capture& capture) noexcept {
  Captures& all = captures();
  handles().for_each(wire::HandleKind::stream, [&](uint64_t, void* object) {
    uint64_t id = capture.id;
    if (object) static_cast<StreamState*>(object)->capture.compare_exchange_strong(id, 0, std::memory_order_relaxed);
  });
  std::lock_guard lock(all.mutex);
  std::erase_if(all.active, [&](const Capture& other) { return other.id == capture.id; });
  all.count.store(uint32_t(all.active.size()), std::memory_order_relaxed);
  capture.context->captures.fetch_sub(1, std::memory_order_relaxed);
  if (capture.blocking) capture.context->blocking_captures.fetch_sub(1, std::memory_order_relaxed);
}

bool valid_mode(CUstreamCaptureMode mode) noexcept {
  return mode == CU_STREAM_CAPTURE_MODE_GLOBAL || mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL || mode == CU_STREAM_CAPTURE_MODE_RELAXED;
}

// May a capture begin in this stream?
CUresult may_begin(const StreamCall& on, CUstreamCaptureMode mode) noexcept {
  if (on.error) return on.error;
  if (!valid_mode(mode)) return CUDA_ERROR_INVALID_VALUE;
  if (on.wire_stream <= wire::kStreamLegacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (on.state->capture.load(std::memory_order_relaxed) != 0) return CUDA_ERROR_ILLEGAL_STATE;
  return CUDA_SUCCESS;
}

// A question about the NULL stream, while a stream that synchronises with it captures, is an error that does no harm to the capture (CUDA
// driver API, cuStreamIsCapturing); other calls on that stream are not as harmless, so this comes before the stream is resolved.
CUresult question_of_null_stream(CUstream stream, bool per_thread) noexcept {
  const ContextState* context = t_context;
  bool null_stream = stream == CU_STREAM_LEGACY || (stream == nullptr && !per_thread);
  return null_stream && context && context->blocking_captures.load(std::memory_order_relaxed) != 0 ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

CUresult query_capture(const StreamCall& on, CUstreamCaptureStatus& status, uint64_t& id) noexcept {
  if (on.error) return on.error;
  id = on.state->capture.load(std::memory_order_acquire);
  status = id == 0 ? CU_STREAM_CAPTURE_STATUS_NONE : capture_status(*on.state);
  return CUDA_SUCCESS;
}

void invalidate(uint64_t id) noexcept {
  Captures& all = captures();
  std::lock_guard lock(all.mutex);
  if (Capture* capture = all.find(id)) capture->invalidated = true;
}

// Asks the server. Most streams have a handful of open ends; when there are more they are asked for again.
CUresult ask(const StreamCall& on, Told& out) {
  constexpr auto kOrdinal = uint32_t(wire::SessionOrdinal::capture_info);
  if (!on.caller.session->facts().knows(kOrdinal)) return CUDA_ERROR_NOT_SUPPORTED;
  size_t room = 8, count = 0;
  do {
    room = std::max(room, count);
    if (room > wire::kListItemsMax) return CUDA_ERROR_NOT_SUPPORTED;
    Candidates graph(wire::HandleKind::graph), nodes(wire::HandleKind::graph_node);
    if (!graph.create(on.caller, 1) || !nodes.create(on.caller, room)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = call<schema::CaptureInfo, schema::CaptureInfoReply>(
        *on.caller.session, kOrdinal, on.caller.context, message_words<schema::CaptureInfo>(room * sizeof(uint64_t), 1),
        [&](schema::CaptureInfo::Builder message) {
          message.setStream(on.wire_stream);
          message.setGraph(graph.handles()[0]);
          set_handles(message.initNodes(unsigned(room)), nodes.handles());
        },
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
  graph_records().note_nodes(out.graph, out.nodes);
  return CUDA_SUCCESS;
}

}  // namespace

void invalidate_capture(uint64_t capture) noexcept { invalidate(capture); }

void invalidate_capture(const StreamState& stream) noexcept {
  if (uint64_t id = stream.capture.load(std::memory_order_acquire)) invalidate(id);
}

CUresult permit_work(ContextState& context, uint64_t wire_stream) noexcept {
  Captures& all = captures();
  if (wire_stream > wire::kStreamLegacy) {
    const StreamState* stream = find_stream(&context, wire_stream);
    bool invalid = stream && capture_status(*stream) == CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    return invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
  }
  CUresult result = CUDA_SUCCESS;
  std::lock_guard lock(all.mutex);
  for (Capture& capture : all.active) {
    if (capture.context != &context || !capture.blocking) continue;
    capture.invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  return result;
}

CUresult permit_synchronisation(ContextState& context) noexcept {
  if (context.captures.load(std::memory_order_relaxed) == 0) [[likely]] return CUDA_SUCCESS;
  Captures& all = captures();
  CUresult result = CUDA_SUCCESS;
  std::lock_guard lock(all.mutex);
  for (Capture& capture : all.active) {
    if (capture.context != &context) continue;
    capture.invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

CUresult permit_wait(const StreamState& stream, uint64_t from, bool recorded) noexcept {
  uint64_t own = stream.capture.load(std::memory_order_acquire);
  Captures& all = captures();
  std::lock_guard lock(all.mutex);
  Capture* here = own ? all.find(own) : nullptr;
  Capture* there = from ? all.find(from) : nullptr;
  if (here && here->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (here && there && here != there) {
    here->invalidated = there->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (here && !there && recorded) {
    here->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  return there && there->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

bool being_captured(uint64_t graph) noexcept {
  Captures& all = captures();
  if (graph == 0 || all.count.load(std::memory_order_relaxed) == 0) [[likely]] return false;
  std::lock_guard lock(all.mutex);
  return std::any_of(all.active.begin(), all.active.end(), [&](const Capture& capture) {
    return capture.told_graph == graph || reinterpret_cast<uint64_t>(capture.graph) == graph;
  });
}

CUstreamCaptureStatus capture_status(const StreamState& stream) noexcept {
  uint64_t id = stream.capture.load(std::memory_order_acquire);
  if (id == 0) return CU_STREAM_CAPTURE_STATUS_NONE;
  Captures& all = captures();
  std::lock_guard lock(all.mutex);
  const Capture* capture = all.find(id);
  if (!capture) return CU_STREAM_CAPTURE_STATUS_NONE;
  return capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

void join_capture(StreamState& stream, uint64_t capture) noexcept {
  if (capture == 0) return;
  Captures& all = captures();
  std::lock_guard lock(all.mutex);
  uint64_t none = 0;
  if (all.find(capture)) stream.capture.compare_exchange_strong(none, capture, std::memory_order_release, std::memory_order_relaxed);
}

CUresult permit_unsafe_call() noexcept {
  Captures& all = captures();
  if (all.count.load(std::memory_order_relaxed) == 0) [[likely]] return CUDA_SUCCESS;
  const ThreadState* thread = thread_state();
  CUstreamCaptureMode mode = thread ? thread->capture_mode : CU_STREAM_CAPTURE_MODE_GLOBAL;
  if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  std::lock_guard lock(all.mutex);
  for (Capture& capture : all.active) {
    bool own = capture.thread == thread && capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    bool foreign = mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!own && !foreign) continue;
    capture.invalidated = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

// The server captures in relaxed mode: the modes are about the program's threads, and are applied here.
CUresult hand::cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode, bool per_thread) {
  StreamCall on(stream, per_thread);
  if (CUresult error = may_begin(on, mode)) return error;
  CUresult result = leave(on.caller, forward::cuStreamBeginCapture_v2(on.caller, on.stream(), CU_STREAM_CAPTURE_MODE_RELAXED));
  return result ? result : register_capture(on, mode, nullptr);
}

CUresult hand::cuStreamBeginCapture(CUstream stream, bool per_thread) {
  return hand::cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, per_thread);
}

CUresult hand::cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData* edges,
                                           size_t count, CUstreamCaptureMode mode, bool per_thread) {
  StreamCall on(stream, per_thread);
  if (CUresult error = may_begin(on, mode)) return error;
  CUresult result = leave(on.caller, forward::cuStreamBeginCaptureToGraph(on.caller, on.stream(), graph, dependencies, edges, count,
                                                                          CU_STREAM_CAPTURE_MODE_RELAXED));
  return result ? result : register_capture(on, mode, graph);
}

CUresult hand::cuStreamEndCapture(CUstream stream, CUgraph* out, bool per_thread) {
  StreamCall on(stream, per_thread);
  if (on.error) return on.error;
  Capture capture;
  {
    Captures& all = captures();
    std::lock_guard lock(all.mutex);
    const Capture* found = all.find(on.state->capture.load(std::memory_order_acquire));
    if (!found) return out ? CUDA_ERROR_ILLEGAL_STATE : CUDA_ERROR_INVALID_VALUE;
    capture = *found;
  }
  // A program has the graph that it began the capture with, and need not be given it again.
  if (!out && !capture.graph) return CUDA_ERROR_INVALID_VALUE;
  if (capture.origin != on.wire_stream) {
    invalidate(capture.id);
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  // In another thread it ends all the same, with an error.
  bool foreign = capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture.thread != thread_state();
  // First here, so that the stream is no part of an invalid capture when the call is sent.
  unregister_capture(capture);
  CUgraph graph = nullptr;
  CUresult result = leave(on.caller, forward::cuStreamEndCapture(on.caller, on.stream(), &graph));
  capture.invalidated = capture.invalidated || foreign;
  if (out) *out = nullptr;
  if (result == CUDA_SUCCESS && !capture.invalidated) graph_records().copy(capture.id, reinterpret_cast<uint64_t>(graph));
  forget_graph(on.caller, capture.id);
  if (result == CUDA_SUCCESS && !capture.invalidated) {
    if (out) *out = graph;
    return CUDA_SUCCESS;
  }
  if (result == CUDA_SUCCESS && !capture.graph) forward::cuGraphDestroy(on.caller, graph);
  // The program may have been told of the graph, which is gone.
  if (capture.told_graph && !capture.graph) {
    if (result) graph_records().note_inner(capture.id, capture.told_graph);
    forget_graph(on.caller, result ? capture.id : capture.told_graph);
  }
  if (foreign) return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  return result && !capture.invalidated ? result : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

CUresult hand::cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status, bool per_thread) {
  if (CUresult error = question_of_null_stream(stream, per_thread)) return error;
  StreamCall on(stream, per_thread);
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  uint64_t id = 0;
  return query_capture(on, *status, id);
}

CUresult hand::cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                         const CUgraphNode** dependencies, const CUgraphEdgeData** edges, size_t* count, bool per_thread) {
  if (CUresult error = question_of_null_stream(stream, per_thread)) return error;
  StreamCall on(stream, per_thread);
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  uint64_t found = 0;
  if (CUresult error = query_capture(on, *status, found)) return error;
  if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (id) *id = found;
  if (!(graph || dependencies || edges || count)) return CUDA_SUCCESS;
  Told told;
  if (CUresult error = ask(on, told)) {
    if (error != CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) return leave(on.caller, error);
    invalidate(found);
    *status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    return CUDA_SUCCESS;
  }
  // A program that does not ask for data of edges must not lose them.
  if (!edges && dependencies && told.edges_matter()) return CUDA_ERROR_LOSSY_QUERY;
  Captures& all = captures();
  std::lock_guard lock(all.mutex);
  Capture* capture = all.find(found);
  if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
  capture->told_graph = told.graph;
  // Valid until the stream's next call (CUDA driver API, cuStreamGetCaptureInfo).
  Told& kept = capture->told[on.wire_stream];
  kept = std::move(told);
  if (graph) *graph = reinterpret_cast<CUgraph>(kept.graph);
  if (dependencies) *dependencies = kept.nodes.empty() ? nullptr : kept.nodes.data();
  if (edges) *edges = kept.edges.empty() ? nullptr : kept.edges.data();
  if (count) *count = kept.nodes.size();
  return CUDA_SUCCESS;
}

CUresult hand::cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                         const CUgraphNode** dependencies, size_t* count, bool per_thread) {
  return hand::cuStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, nullptr, count, per_thread);
}

CUresult hand::cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, bool per_thread) {
  return hand::cuStreamGetCaptureInfo_v3(stream, status, id, nullptr, nullptr, nullptr, nullptr, per_thread);
}

CUresult hand::cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  if (!mode || !valid_mode(*mode)) return CUDA_ERROR_INVALID_VALUE;
  ThreadState* thread = thread_state();
  if (!thread) return CUDA_ERROR_OUT_OF_MEMORY;
  std::swap(thread->capture_mode, *mode);
  return CUDA_SUCCESS;
}

}  // namespace gpuwire::client
