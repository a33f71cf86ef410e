// What all copies, and fills, ask before they begin.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "client_stub/driver/call/caller.hpp"
#include "client_stub/driver/memory/place.hpp"

namespace gpuwire::client {

// What a copy or a fill does with its stream.
enum class Form : uint8_t {
  blocking,  // no stream argument
  ordered,   // ...Async
};

// For work at unknown addresses: waits until the server's driver has judged all that was sent, so that leave() tells
// its verdict.
CUresult await_verdict(const Caller& caller);

// A source on the host is read at once, natively only when the stream gets there. The two differ for page-locked memory
// that is still being written to: by an earlier asynchronous copy, or by a function of the program that the stream is
// to call. Waits for those.
CUresult settle_source(const Caller& caller, const Place& source, uint64_t stream);

// Where the copy's own stream is captured: into the graph, unless the capture is invalid. A `blocking` form (in the
// thread's own default stream) would wait for it: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, and the capture is invalid.
// What other streams capture a copy does not mind (as measured on driver 580), but for the NULL stream's own rule.
CUresult refuse_in_capture(const Caller& caller, uint64_t stream, bool blocking);

}  // namespace gpuwire::client
