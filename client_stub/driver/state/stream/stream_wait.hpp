// Waiting for the work of a stream.
#pragma once

#include <cuda.h>

#include "client_stub/driver/state/stream/stream_call.hpp"

namespace gpuwire::client {

// All sent work is known to be done. A failure that a watch found is returned once, and recorded in the context.
CUresult finished(const StreamCall& on) noexcept;
// A stream that captures is at rest only when the capture is over.
CUresult refuse_captured(const StreamCall& on) noexcept;
CUresult wait_for_stream(StreamCall& on);
// The wait of our own calls: cuStreamSynchronize, which a program may not call while it captures elsewhere.
CUresult synchronise_stream(CUstream stream, bool per_thread);

}  // namespace gpuwire::client
