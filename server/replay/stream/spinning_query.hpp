// A client's query for work that may be done soon: the executor waits briefly before it answers.
#pragma once

#include <cuda.h>

#include "server/replay/completion/polling.hpp"
#include "server/replay/session/replay_state.hpp"

namespace gpuwire::server {

// Repeats `query` for as long as QuerySpin allows. Executor only.
template <class Query>
CUresult query_spinning(Replay& replay, Query query) {
  QuerySpin& policy = replay.state().query_spin();
  CUresult result = query();
  if (auto spin = policy.allowed(replay.poll_time()); result == CUDA_ERROR_NOT_READY && spin.count() > 0) {
    result = poll_for(replay, query, spin);
    policy.waited(result != CUDA_ERROR_NOT_READY);
  }
  return result;
}

}  // namespace gpuwire::server
