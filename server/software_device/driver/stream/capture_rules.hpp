// The actions that are forbidden while streams capture (CUDA driver API, cuStreamBeginCapture,
// cuThreadExchangeStreamCaptureMode), and the early ends of a capture. Each check costs one atomic load while there is
// no capture.
#pragma once

#include <cuda.h>

#include "server/software_device/driver/stream/capture.hpp"

namespace gpuwire::software_device {

// The calling thread's identity for captures, and its mode (cuThreadExchangeStreamCaptureMode).
const void* capture_thread() noexcept;
CUstreamCaptureMode& capture_mode() noexcept;

// A capture begins or has ended. Lock: graph_mutex is held.
void note_capture(std::shared_ptr<CaptureSession> session);
void note_capture_end(const CaptureSession& session);
// Returns whether an active capture adds to the graph. Lock: graph_mutex is held.
bool is_captured_into(const Graph& graph);
// Ends the captures of a context that is destroyed.
void end_captures(const Context& context);

// Each permit function returns success, or CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED or _IMPLICIT after making the affected
// captures invalid. permit_unsafe_call() is for calls that affect captures, such as allocating memory.
CUresult permit_unsafe_call();
// The same, for calls that return the fault of a failed context regardless of captures.
CUresult permit_unless_failed();
// The same for each exported function that captures forbid according to protocol/api/; success for all others.
CUresult permit_function(const char* name);
// For calls that wait for all work of a context or, if `slot` is a green context's, for that context's streams. Calls
// on other contexts wait for the streams of green contexts, too, but ignore captures there (measured on driver 580).
CUresult permit_synchronisation(const Context& context, const ContextSlot* slot);
// Returns whether a blocking stream of the context takes part in an active capture.
bool blocking_capture_in(const Context& context);
// For every call that names a stream, before its other arguments are checked. The legacy stream waits for blocking
// streams, whose work does not end while they are captured.
CUresult permit_stream_call(const Context& context, const Stream& stream);

}  // namespace gpuwire::software_device
