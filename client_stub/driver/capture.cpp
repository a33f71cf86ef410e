#include "client_stub/driver/capture.hpp"

#include <pthread.h>

#include <mutex>
#include <new>
#include <vector>

#include "client/forward.hpp"
#include "client/hand.hpp"
#include "client_stub/driver/caller.hpp"
#include "client_stub/driver/process.hpp"
#include "client_stub/driver/stream_call.hpp"

namespace gpuwire::client {
namespace {

struct Capture {
  uint64_t id = 0;
  ContextState* context = nullptr;
  uint64_t origin = 0;           // wire stream
  bool blocking = false;         // the origin synchronises with the NULL stream
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  const ThreadState* thread = nullptr;
  CUgraph graph = nullptr;       // cuStreamBeginCaptureToGraph: the program's own
  bool invalidated = false;
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

// What a query about a stream answers: for the NULL stream, an error while a stream that synchronises with it captures (CUDA driver API,
// cuStreamIsCapturing).
CUresult query_capture(const StreamCall& on, CUstreamCaptureStatus& status, uint64_t& id) noexcept {
  if (on.error) return on.error;
  if (on.wire_stream <= wire::kStreamLegacy && on.caller.state->blocking_captures.load(std::memory_order_relaxed) != 0) {
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  id = on.state->capture.load(std::memory_order_acquire);
  status = id == 0 ? CU_STREAM_CAPTURE_STATUS_NONE : capture_status(*on.state);
  return CUDA_SUCCESS;
}

}  // namespace

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
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  Capture capture;
  {
    Captures& all = captures();
    std::lock_guard lock(all.mutex);
    const Capture* found = all.find(on.state->capture.load(std::memory_order_acquire));
    if (!found) return CUDA_ERROR_ILLEGAL_STATE;
    capture = *found;
  }
  if (capture.origin != on.wire_stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  if (capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture.thread != thread_state()) return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  CUgraph graph = nullptr;
  CUresult result = leave(on.caller, forward::cuStreamEndCapture(on.caller, on.stream(), &graph));
  unregister_capture(capture);
  *out = nullptr;
  if (result) return result;
  if (capture.invalidated) {
    if (!capture.graph) forward::cuGraphDestroy(on.caller, graph);
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  *out = capture.graph ? capture.graph : graph;
  return CUDA_SUCCESS;
}

CUresult hand::cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status, bool per_thread) {
  StreamCall on(stream, per_thread);
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  uint64_t id = 0;
  return query_capture(on, *status, id);
}

// What has been captured so far stays at the server: a program that asks for the graph or the nodes of a capture under way is told that
// this is not supported, instead of being given an incomplete answer.
CUresult hand::cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                         const CUgraphNode** dependencies, const CUgraphEdgeData** edges, size_t* count, bool per_thread) {
  StreamCall on(stream, per_thread);
  if (!status) return CUDA_ERROR_INVALID_VALUE;
  uint64_t found = 0;
  if (CUresult error = query_capture(on, *status, found)) return error;
  if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (id) *id = found;
  return graph || dependencies || edges || count ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
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
