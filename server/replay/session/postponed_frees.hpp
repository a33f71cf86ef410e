// Frees of device memory, for which the driver waits for the device: they wait while a stream may wait for a host
// function of the client.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace gpuwire::server {

class Replay;

// The bound of deferred frees. Beyond it a free is made at once, and may wait.
inline constexpr size_t kPostponedFreesMax = 64u << 10;

struct PostponedFree {
  uint32_t context = 0;
  CUdeviceptr address = 0;
  // The memory is a host region, not device memory.
  bool region = false;
  // The newest run of a callback when the free was deferred. The free waits for all runs up to it.
  uint64_t behind = 0;
};

// Executor: defers the free if a stream may wait at a callback of the client. Returns false if the caller has to free
// now.
bool postpone(Replay& replay, PostponedFree free);
// Executor, after each frame: makes the deferred frees whose callbacks have been answered.
void run_postponed_frees(Replay& replay);

}  // namespace gpuwire::server
