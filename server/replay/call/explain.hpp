// What is owed to the program before it learns of a failure.
#pragma once

#include <cuda.h>

#include "protocol/cuda_abi/sticky.hpp"
#include "server/driver_table.hpp"
#include "server/replay/replay.hpp"

namespace gpuwire::server {

// Before a failure is told, by a reply or by a notice: what the driver printed about it, and what kernels printed
// before it, has left before the error code. Of a context that is lost the program asks nothing more here, and a query
// that finds out writes nothing: a synchronising call does (CUDA programming guide, "Formatted Output"). Any thread.
inline void explain(Replay& replay, CUresult result) {
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY) return;
  if (cuda_abi::is_sticky(result) && replay.driver().cuStreamSynchronize) replay.driver().cuStreamSynchronize(nullptr);
  replay.drain_output();
}

}  // namespace gpuwire::server
