// Stream capture as the program sees it. The server's driver captures; the stub mirrors which streams take part, because programs ask that
// in nearly every call, and applies the rules about modes and threads, which the server cannot: all threads of the program are one there.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace gpuwire::client {

struct StreamState;

// ACTIVE or INVALIDATED for a stream that takes part in a capture, else NONE.
CUstreamCaptureStatus capture_status(const StreamState& stream) noexcept;

// Work recorded by an event is waited for by a stream: it joins the event's capture, if that is still under way.
void join_capture(StreamState& stream, uint64_t capture) noexcept;

// For calls that CUDA forbids while a capture may notice them (allocating memory, for one). Success, or
// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, and then the captures in question are invalid. Costs one atomic load while nothing is captured.
CUresult permit_unsafe_call() noexcept;

}  // namespace gpuwire::client
