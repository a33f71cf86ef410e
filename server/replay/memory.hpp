// Freeing device memory, which in the driver waits for the device.
#pragma once

#include "server/replay/replay.hpp"

namespace gpuwire::server {

// Frees put off at the same time. Past it a free is made at once, and may wait.
inline constexpr size_t kPostponedFreesMax = 64u << 10;

struct PostponedFree {
  uint32_t context = 0;
  CUdeviceptr address = 0;
  bool region = false;  // a host region, not device memory
};

// Executor, after each frame: makes the frees that were put off while a stream stood at a callback of the client, when none does any more.
void run_postponed_frees(Replay& replay);

}  // namespace gpuwire::server
