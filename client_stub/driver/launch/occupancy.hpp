// How many blocks of a kernel fit on the device: asked once for each set of arguments.
#pragma once

#include <cuda.h>

#include <cstddef>

#include "client_stub/driver/module/module_state.hpp"

namespace gpuwire::client {

// Blocks per multiprocessor, on the device of the caller's context. Blocks the first time.
CUresult occupancy_blocks(const Caller& caller, FunctionState& function, int block_threads, size_t dynamic_bytes,
                          unsigned flags, int& blocks);

}  // namespace gpuwire::client
