#include "server/software_device/driver/stream/capture.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "server/software_device/driver/call/api.hpp"
#include "server/software_device/driver/stream/capture_rules.hpp"
#include "server/software_device/driver/call/refusal.hpp"

namespace gpuwire::software_device {
namespace {

cuuint64_t next_capture_id = 1;  // guarded by graph_mutex

std::vector<CUgraphNode>& frontier_of(CaptureSession& session, const Stream& stream) {
  return std::find_if(session.frontiers.begin(), session.frontiers.end(),
                      [&](const auto& row) { return row.first.get() == &stream; })
      ->second;
}

void join(const std::shared_ptr<CaptureSession>& session, const std::shared_ptr<Stream>& stream,
          std::vector<CUgraphNode> frontier) {
  stream->capture = session;
  session->blocking = session->blocking || stream->blocking();
  stream->capturing.store(true, std::memory_order_release);
  session->frontiers[stream] = std::move(frontier);
}

void end_session(CaptureSession& session) {
  note_capture_end(session);
  for (const auto& [stream, frontier] : std::exchange(session.frontiers, {})) {
    stream->capturing.store(false, std::memory_order_release);
    stream->capture = nullptr;
  }
}

void add_unique(std::vector<CUgraphNode>& to, const std::vector<CUgraphNode>& from) {
  for (const CUgraphNode node : from) {
    if (std::find(to.begin(), to.end(), node) == to.end()) {
      to.push_back(node);
    }
  }
}

// Returns whether every other stream's work is an ancestor of the origin's last work.
bool joined(const CaptureSession& session) {
  std::vector<CUgraphNode> open;
  for (const auto& [stream, frontier] : session.frontiers) {
    if (stream.get() == session.origin) {
      open = frontier;
    }
  }
  std::set<CUgraphNode> reached(open.begin(), open.end());
  while (!open.empty()) {
    const GraphNode* const node = session.graph->find(open.back());
    open.pop_back();
    for (const CUgraphNode each : node == nullptr ? std::vector<CUgraphNode>{} : node->dependencies) {
      if (reached.insert(each).second) {
        open.push_back(each);
      }
    }
  }
  return std::all_of(session.frontiers.begin(), session.frontiers.end(), [&](const auto& row) {
    return std::all_of(row.second.begin(), row.second.end(),
                       [&](CUgraphNode node) { return reached.count(node) != 0; });
  });
}

CUresult begin(const std::shared_ptr<Stream>& stream, std::shared_ptr<Graph> graph,
               std::vector<CUgraphNode> dependencies, CUstreamCaptureMode mode) {
  if (mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (stream->kind == Stream::Kind::legacy) {
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (stream->capture != nullptr) {
    return CUDA_ERROR_ILLEGAL_STATE;
  }
  auto session = std::make_shared<CaptureSession>();
  session->id = next_capture_id++;
  session->mode = mode;
  session->into_existing = graph != nullptr;
  session->graph = graph != nullptr ? std::move(graph) : make_graph();
  session->origin = stream.get();
  session->context = stream->context.lock().get();
  session->thread = capture_thread();
  note_capture(session);
  join(session, stream, std::move(dependencies));
  return CUDA_SUCCESS;
}

template <typename Body>
CUresult with_shared_stream(CUstream handle, Body&& body) noexcept {
  return with_context_of(handle, [&](Context& current) -> CUresult {
    const auto stream = current.stream(handle);
    const auto owner = stream == nullptr ? nullptr : stream->context.lock();
    return owner == nullptr ? CUDA_ERROR_INVALID_HANDLE : body(*owner, stream);
  });
}

// Runs `body` for calls that change a capture. They may not name the legacy stream beside a blocking capture.
template <typename Body>
CUresult with_captured_stream(CUstream handle, Body&& body) noexcept {
  return with_shared_stream(handle, [&](Context& context, const std::shared_ptr<Stream>& stream) -> CUresult {
    const CUresult forbidden = permit_stream_call(context, *stream);
    return forbidden != CUDA_SUCCESS ? forbidden : body(context, stream);
  });
}

}  // namespace

CUresult permit_work(const Stream& stream) { return is_capturing(stream) ? permit_captured(stream) : CUDA_SUCCESS; }

CUresult permit_captured(const Stream& stream) {
  const std::lock_guard lock(graph_mutex());
  return stream.capture == nullptr || stream.capture->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                                                                  : CUDA_SUCCESS;
}

CUresult capture_work(Context& context, Stream& stream, NodePayload payload) {
  const std::lock_guard lock(graph_mutex());
  if (stream.capture == nullptr || stream.capture->invalidated) {
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  CaptureSession& session = *stream.capture;
  auto& frontier = frontier_of(session, stream);
  const auto node = add_node(*session.graph, std::move(payload), context.weak_from_this(), frontier);
  if (!node) {
    session.invalidated = true;
    return node.error();
  }
  frontier = {(*node)->handle};
  return CUDA_SUCCESS;
}

CUresult invalidate_capture(Stream& stream, CUresult reason) {
  const std::lock_guard lock(graph_mutex());
  if (stream.capture != nullptr) {
    stream.capture->invalidated = true;
  }
  return reason;
}

CUresult refuse_captured(Event& event) {
  const std::lock_guard lock(graph_mutex());
  const auto session = event.captured_in.lock();
  if (session == nullptr || session->frontiers.empty() || session->invalidated) {
    return CUDA_ERROR_INVALID_VALUE;  // that capture has ended or is invalid (measured on driver 580)
  }
  session->invalidated = true;
  return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult capture_record(Context& context, Stream& stream, const std::shared_ptr<Event>& event, bool external) {
  if (external) {
    return capture_work(context, stream, RecordEvent{event});
  }
  const std::lock_guard lock(graph_mutex());
  if (stream.capture == nullptr || stream.capture->invalidated) {
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  event->captured_in = stream.capture;
  event->captured_after = frontier_of(*stream.capture, stream);
  event->captured.store(true, std::memory_order_release);
  return CUDA_SUCCESS;
}

CUresult capture_wait(Context& context, const std::shared_ptr<Stream>& stream, const std::shared_ptr<Event>& event,
                      bool external) {
  if (external) {
    return capture_work(context, *stream, WaitForEvent{event});
  }
  bool recorded = false;
  {
    const std::lock_guard lock(event->mutex);
    recorded = event->recorded != nullptr;
  }
  const std::lock_guard lock(graph_mutex());
  if (stream->capture != nullptr && stream->capture->invalidated) {
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  const auto session = event->captured_in.lock();
  // A wait for an event that was never recorded has no effect.
  if (!event->captured.load(std::memory_order_acquire) && !recorded) {
    return CUDA_SUCCESS;
  }
  const bool captured = event->captured.load(std::memory_order_acquire);
  if (captured && (session == nullptr || session->frontiers.empty())) {
    return CUDA_ERROR_INVALID_VALUE;  // that capture has ended
  }
  if (!captured) {
    if (stream->capture != nullptr) {
      stream->capture->invalidated = true;
    }
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (session->invalidated) {
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  if (stream->capture == nullptr) {
    if (stream->kind == Stream::Kind::legacy) {
      session->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    join(session, stream, event->captured_after);
  } else if (stream->capture == session) {
    add_unique(frontier_of(*session, *stream), event->captured_after);
  } else {
    session->invalidated = stream->capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  return CUDA_SUCCESS;
}

void end_capture_with(const Stream& stream) {
  const std::lock_guard lock(graph_mutex());
  const std::shared_ptr<CaptureSession> session = stream.capture;
  if (session != nullptr && session->origin == &stream) {
    end_session(*session);
  }
}

}  // namespace gpuwire::software_device

using namespace gpuwire::software_device;

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  const CUresult result = with_captured_stream(handle, [&](Context&, const std::shared_ptr<Stream>& stream) {
    const std::lock_guard lock(graph_mutex());
    return begin(stream, nullptr, {}, mode);
  });
  // An invalid mode is reported before a fault (measured on driver 580).
  return mode > CU_STREAM_CAPTURE_MODE_RELAXED && gpuwire::cuda_abi::is_sticky(result) ? CUDA_ERROR_INVALID_VALUE
                                                                                       : result;
}

CUresult cuStreamBeginCapture(CUstream handle) {
  return cuStreamBeginCapture_v2(handle, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult cuStreamBeginCaptureToGraph(CUstream handle, CUgraph graph_handle, const CUgraphNode* dependencies,
                                     const CUgraphEdgeData* edges, size_t count, CUstreamCaptureMode mode) {
  return with_captured_stream(handle, [&](Context&, const std::shared_ptr<Stream>& stream) -> CUresult {
    const std::lock_guard lock(graph_mutex());
    auto graph = driver().graphs.find(graph_handle);
    if (graph == nullptr || (count != 0 && dependencies == nullptr)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (edges != nullptr) {
      return not_supported("a graph's edge with data");
    }
    return begin(stream, std::move(graph), {dependencies, dependencies + count}, mode);
  });
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* out) {
  return with_captured_stream(handle, [&](Context&, const std::shared_ptr<Stream>& stream) -> CUresult {
    const std::lock_guard lock(graph_mutex());
    if (out != nullptr) {
      *out = nullptr;  // in every case (measured on driver 580, like the following)
    }
    if (stream->capture == nullptr) {
      return CUDA_ERROR_ILLEGAL_STATE;
    }
    const auto session = stream->capture;
    if (session->origin != stream.get()) {
      session->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    // A call from another thread ends the capture as well, and returns an error.
    const bool foreign = session->mode != CU_STREAM_CAPTURE_MODE_RELAXED && session->thread != capture_thread();
    const CUresult result = session->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                            : !joined(*session)  ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                            : foreign            ? CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
                                                 : CUDA_SUCCESS;
    end_session(*session);
    // This applies to a graph of the program's own, too (measured on driver 580).
    if (result != CUDA_SUCCESS) {
      forget_graph(*session->graph);
    }
    if (out != nullptr) {
      *out = result == CUDA_SUCCESS ? session->graph->handle : nullptr;
    }
    return result;
  });
}

CUresult cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                   const CUgraphNode** dependencies, const CUgraphEdgeData** edges, size_t* count) {
  // This is reported before a fault, before a missing context and before captures (measured on driver 580).
  if (status == nullptr) {
    return with_driver([] { return CUDA_ERROR_INVALID_VALUE; });
  }
  return with_shared_stream(handle, [&](Context& context, const std::shared_ptr<Stream>& stream) -> CUresult {
    if (stream->kind == Stream::Kind::legacy && blocking_capture_in(context)) {
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    const std::lock_guard lock(graph_mutex());
    if (stream->capture == nullptr) {
      *status = CU_STREAM_CAPTURE_STATUS_NONE;
      return CUDA_SUCCESS;
    }
    CaptureSession& session = *stream->capture;
    *status = session.invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (session.invalidated) {
      return CUDA_SUCCESS;
    }
    // The pointer is valid until the stream's next call, as documented.
    const auto& frontier = frontier_of(session, *stream);
    if (id != nullptr) {
      *id = session.id;
    }
    if (graph != nullptr) {
      *graph = session.graph->handle;
    }
    if (dependencies != nullptr) {
      *dependencies = frontier.data();
    }
    if (edges != nullptr) {
      *edges = nullptr;
    }
    if (count != nullptr) {
      *count = frontier.size();
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                   const CUgraphNode** dependencies, size_t* count) {
  return cuStreamGetCaptureInfo_v3(handle, status, id, graph, dependencies, nullptr, count);
}

CUresult cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id) {
  return cuStreamGetCaptureInfo_v3(handle, status, id, nullptr, nullptr, nullptr, nullptr);
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  return cuStreamGetCaptureInfo(handle, status, nullptr);
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream handle, CUgraphNode* dependencies, const CUgraphEdgeData* edges,
                                              size_t count, unsigned int flags) {
  const auto change = [&](Context&, const std::shared_ptr<Stream>& stream) -> CUresult {
    const std::lock_guard lock(graph_mutex());
    if (stream->capture == nullptr) {
      return CUDA_ERROR_ILLEGAL_STATE;
    }
    if ((count != 0 && dependencies == nullptr) || flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (edges != nullptr) {
      return not_supported("a graph's edge with data");
    }
    const std::vector<CUgraphNode> nodes(dependencies, dependencies + count);
    if (std::any_of(nodes.begin(), nodes.end(),
                    [&](CUgraphNode node) { return stream->capture->graph->find(node) == nullptr; })) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto& frontier = frontier_of(*stream->capture, *stream);
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) {
      frontier.clear();
    }
    add_unique(frontier, nodes);
    return CUDA_SUCCESS;
  };
  return with_context([&](Context&) { return with_captured_stream(handle, change); });
}

CUresult cuStreamUpdateCaptureDependencies(CUstream handle, CUgraphNode* dependencies, size_t count,
                                           unsigned int flags) {
  return cuStreamUpdateCaptureDependencies_v2(handle, dependencies, nullptr, count, flags);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  if (mode == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // An invalid mode is accepted, too (measured on driver 580): it is neither global nor relaxed.
  std::swap(*mode, capture_mode());
  return CUDA_SUCCESS;
}
