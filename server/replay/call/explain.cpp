#include "server/replay/call/explain.hpp"

#include "protocol/cuda_abi/sticky.hpp"
#include "server/driver_table.hpp"
#include "server/replay/replay.hpp"

namespace gpuwire::server {

void explain(Replay& replay, CUresult result) {
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY) return;
  if (cuda_abi::is_sticky(result) && replay.driver().cuStreamSynchronize) replay.driver().cuStreamSynchronize(nullptr);
  replay.drain_output();
}

}  // namespace gpuwire::server
