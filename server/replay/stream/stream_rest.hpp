// Whether the device is at rest, as far as the session is concerned, without waiting for it.
#pragma once

#include "server/replay/replay.hpp"

namespace gpuwire::server {

// No stream of the session has work left or captures: then cuCtxSynchronize does not block, but for work in NULL
// streams, which are not looked at, and in streams that were destroyed before it was done. Executor only.
bool streams_idle(Replay& replay);

// cuStreamQuery, which knows of all that words have told (passed_marks.hpp). Executor only.
CUresult query_stream(Replay& replay, CUstream stream);

}  // namespace gpuwire::server
