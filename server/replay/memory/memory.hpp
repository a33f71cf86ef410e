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
  uint64_t behind = 0;  // the newest run of a callback when it was put off: the free waits for all up to it
};

// Executor: puts the free off if a stream may stand at a callback of the client. False: it is to be made now.
bool postpone(Replay& replay, PostponedFree free);
// Executor, after each frame: makes the frees that were put off and whose callbacks have been answered.
void run_postponed_frees(Replay& replay);

}  // namespace gpuwire::server
