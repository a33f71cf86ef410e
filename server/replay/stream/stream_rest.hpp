// Whether the session has work in flight, determined without waiting.
#pragma once

#include "server/replay/replay.hpp"

namespace gpuwire::server {

// Returns whether no stream of the session has work left or captures. Then cuCtxSynchronize blocks only for work in
// NULL streams, which are not checked, and in streams that were destroyed before their work was done. Executor only.
bool streams_idle(Replay& replay);

// Returns streams_idle() for NULL streams and functions of the client, too: then a wait for all work does not wait for
// a future action of the client. May leave another context current. Executor only.
bool at_rest(Replay& replay);

// Makes the context current if it exists and is usable. Does not activate a primary context.
bool enter_living(Replay& replay, uint32_t number);

// cuStreamQuery that also takes completion words into account (passed_marks.hpp). Executor only.
CUresult query_stream(Replay& replay, CUstream stream);

}  // namespace gpuwire::server
