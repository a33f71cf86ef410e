// Whether the device is at rest, as far as the session is concerned, without waiting for it.
#pragma once

#include "server/replay/replay.hpp"

namespace gpuwire::server {

// No stream of the session has work left or captures: then cuCtxSynchronize does not block, but for work in NULL
// streams, which are not looked at, and in streams that were destroyed before it was done. Executor only.
bool streams_idle(Replay& replay);

// The same for NULL streams and functions of the client, too: then a wait for all work does not wait for a future
// action of the client. Leaves another context current. Executor only.
bool at_rest(Replay& replay);

// Makes the context current, if there is one by now and it is of use. A primary one is not made for this.
bool enter_living(Replay& replay, uint32_t number);

// cuStreamQuery, with all that the words have shown (passed_marks.hpp). Executor only.
CUresult query_stream(Replay& replay, CUstream stream);

}  // namespace gpuwire::server
