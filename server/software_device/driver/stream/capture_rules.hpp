// The actions that are forbidden while streams capture (CUDA driver API, cuStreamBeginCapture,
// cuThreadExchangeStreamCaptureMode), and the early ends of a capture. Each check costs one atomic load while nothing
// is captured.
#pragma once

#include <cuda.h>

#include "server/software_device/driver/stream/capture.hpp"

namespace gpuwire::software_device {

// The calling thread, as captures remember it, and its mode (cuThreadExchangeStreamCaptureMode).
const void* capture_thread() noexcept;
CUstreamCaptureMode& capture_mode() noexcept;

// A capture begins or has ended. With graph_mutex held.
void note_capture(std::shared_ptr<CaptureSession> session);
void note_capture_end(const CaptureSession& session);
// Whether a capture under way goes into the graph. With graph_mutex held.
bool is_captured_into(const Graph& graph);
// A context takes its captures along.
void end_captures(const Context& context);

// The rules answer success, or CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED or _IMPLICIT, and then the captures in question
// are invalid. For calls that a capture may notice: allocating memory, for one.
CUresult permit_unsafe_call();
// The same for calls that a context that has failed answers with its fault, whatever is captured.
CUresult permit_unless_failed();
// The same for each exported function that protocol/api/ says captures forbid; success for all others.
CUresult permit_function(const char* name);
// For calls that wait for all of a context, or, where `slot` is a green context's, for the streams of that. The others
// wait for green contexts' streams, too, but captures there do not affect them (as measured on driver 580).
CUresult permit_synchronisation(const Context& context, const ContextSlot* slot);
// Is a capture under way that a blocking stream of the context takes part in?
bool blocking_capture_in(const Context& context);
// For every call that names a stream, before its other arguments are looked at. The legacy stream waits for blocking
// ones, which never end while they are captured.
CUresult permit_stream_call(const Context& context, const Stream& stream);

}  // namespace gpuwire::software_device
