// Whether the device is at rest, as far as the session is concerned, without waiting for it.
#pragma once

#include <cuda.h>

#include <chrono>

#include "server/replay/replay.hpp"

namespace gpuwire::server {

// No stream of the session has work left or captures: then cuCtxSynchronize does not block, but for work in NULL
// streams, which are not looked at, and in streams that were destroyed before it was done. Executor only.
bool streams_idle(Replay& replay);

// Asks a stream itself until all that is on it is done, for as long as the replay polls or `at_least`: while the
// executor waits, nothing of the client's gets onto it. An event behind the work would be one more thing for the device
// to pass, which is done 1.8 us later on an idle one (docs/scheduling_mechanism.md). CUDA_SUCCESS, the error by which
// the context is lost, or CUDA_ERROR_NOT_READY: it is not done, or an event or a call that waits has to tell. Executor
// only.
CUresult poll_stream(Replay& replay, CUstream stream, std::chrono::microseconds at_least = {});

}  // namespace gpuwire::server
