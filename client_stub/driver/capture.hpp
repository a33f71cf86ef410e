// Stream capture as the program sees it. The server's driver captures; the stub mirrors which streams take part, because programs ask that
// in nearly every call, and applies the rules about modes and threads, which the server cannot: all threads of the program are one there.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace gpuwire::client {

struct ContextState;
struct StreamState;

// ACTIVE or INVALIDATED for a stream that takes part in a capture, else NONE.
CUstreamCaptureStatus capture_status(const StreamState& stream) noexcept;

// Work recorded by an event is waited for by a stream: it joins the event's capture, if that is still under way.
void join_capture(StreamState& stream, uint64_t capture) noexcept;

// The stream's capture, if it takes part in one, can only end in an error from here on.
void invalidate_capture(const StreamState& stream) noexcept;
void invalidate_capture(uint64_t capture) noexcept;

// For work sent to this stream of the context (as measured on driver 580). CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: it is the NULL stream, and one
// that synchronises with it captures, which becomes invalid; CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: it takes part in an invalid capture.
CUresult permit_work(ContextState& context, uint64_t wire_stream) noexcept;
// For calls that wait for all of a context. CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED while something of it is captured, which becomes invalid.
CUresult permit_synchronisation(ContextState& context) noexcept;
// A stream waits for an event that was recorded in the capture `from` (0: in none). Not success: the captures are invalid.
CUresult permit_wait(const StreamState& stream, uint64_t from, bool recorded) noexcept;
// Is this the graph of a capture under way?
bool being_captured(uint64_t graph) noexcept;

// For calls that CUDA forbids while a capture may notice them (allocating memory, for one). Success, or
// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, and then the captures in question are invalid. Costs one atomic load while nothing is captured.
CUresult permit_unsafe_call() noexcept;

}  // namespace gpuwire::client
