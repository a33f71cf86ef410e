// Waits for the work of a stream.
#pragma once

#include <cuda.h>

#include "client_stub/driver/state/stream/stream_call.hpp"

namespace gpuwire::client {

// Returns a failure that a watch found, once, and records it in the context. Precondition: all sent work is known to be
// done.
CUresult finished(const StreamCall& on) noexcept;
// A capturing stream is at rest only after the capture.
CUresult refuse_captured(const StreamCall& on) noexcept;
CUresult wait_for_stream(const StreamCall& on);
// The wait of the client's own calls: a program may not call cuStreamSynchronize while it captures elsewhere.
CUresult synchronise_stream(CUstream stream, bool per_thread);

}  // namespace gpuwire::client
