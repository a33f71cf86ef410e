// Stream capture: a stream's work is added to a graph instead of being executed.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include <cuda.h>

#include "server/software_device/driver/graph/graph_object.hpp"
#include "server/software_device/driver/stream/stream_object.hpp"

namespace gpuwire::software_device {

// One capture, and the streams that have joined it. Guarded by graph_mutex.
class CaptureSession {
 public:
  cuuint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  std::shared_ptr<Graph> graph;
  bool into_existing = false;  // cuStreamBeginCaptureToGraph: the graph is the program's own
  Stream* origin = nullptr;
  // The context and the thread of its begin. The pointers are only compared.
  const Context* context = nullptr;
  const void* thread = nullptr;
  bool blocking = false;  // one of its streams synchronises with the legacy stream
  bool invalidated = false;
  // The nodes on which the next work of each stream depends.
  std::map<std::shared_ptr<Stream>, std::vector<CUgraphNode>> frontiers;
};

inline bool is_capturing(const Stream& stream) { return stream.capturing.load(std::memory_order_acquire); }

// Returns CUDA_ERROR_STREAM_CAPTURE_INVALIDATED for a captured stream that accepts no more work.
CUresult permit_captured(const Stream& stream);
// Returns the same for any stream. Called before the other arguments of work are checked.
CUresult permit_work(const Stream& stream);
// Adds work to the graph into which the stream is captured.
CUresult capture_work(Context& context, Stream& stream, NodePayload payload);
// Ends the capture that has begun in the stream, if there is one.
void end_capture_with(const Stream& stream);
// For calls that a captured stream cannot accept: makes the capture invalid and returns `reason`.
CUresult invalidate_capture(Stream& stream, CUresult reason);
// For queries of an event that was recorded in a capture: makes the capture invalid and returns
// CUDA_ERROR_CAPTURED_EVENT.
CUresult refuse_captured(Event& event);
// cuEventRecord and cuStreamWaitEvent if the stream or the event is part of a capture.
CUresult capture_record(Context& context, Stream& stream, const std::shared_ptr<Event>& event, bool external);
CUresult capture_wait(Context& context, const std::shared_ptr<Stream>& stream, const std::shared_ptr<Event>& event,
                      bool external);

}  // namespace gpuwire::software_device
