// Stream capture: a stream's work goes into a graph instead of being carried out.
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
  bool into_existing = false;  // cuStreamBeginCaptureToGraph: the graph is the program's already
  Stream* origin = nullptr;
  // The place and the thread of its begin; compared, never followed.
  const Context* context = nullptr;
  const void* thread = nullptr;
  bool blocking = false;  // one of its streams waits for the legacy stream, and the other way round
  bool invalidated = false;
  // The nodes that the next work of each stream depends on.
  std::map<std::shared_ptr<Stream>, std::vector<CUgraphNode>> frontiers;
};

inline bool is_capturing(const Stream& stream) { return stream.capturing.load(std::memory_order_acquire); }

// CUDA_ERROR_STREAM_CAPTURE_INVALIDATED for a captured stream that can take nothing any more.
CUresult permit_captured(const Stream& stream);
// The same for every stream: before the other arguments of work are looked at.
CUresult permit_work(const Stream& stream);
// Adds work to the graph that the stream is captured into.
CUresult capture_work(Context& context, Stream& stream, NodePayload payload);
// The capture that has begun in the stream, if there is one, ends with it.
void end_capture_with(const Stream& stream);
// For calls that a captured stream cannot take: makes the capture invalid and returns `reason`.
CUresult invalidate_capture(Stream& stream, CUresult reason);
// For questions about an event that was recorded in a capture, which becomes invalid: CUDA_ERROR_CAPTURED_EVENT.
CUresult refuse_captured(Event& event);
// cuEventRecord and cuStreamWaitEvent where a capture is involved.
CUresult capture_record(Context& context, Stream& stream, const std::shared_ptr<Event>& event, bool external);
CUresult capture_wait(Context& context, const std::shared_ptr<Stream>& stream, const std::shared_ptr<Event>& event,
                      bool external);

}  // namespace gpuwire::software_device
