// Checks a launch and packs its parameters.
#pragma once

#include <cuda.h>
#include <tl/expected.hpp>

#include "server/software_device/driver/stream_work.hpp"

namespace gpuwire::software_device {

struct LaunchRequest {
  CUfunction function = nullptr;  // or a CUkernel
  Dim3 grid, block;
  uint32_t dynamic_shared_bytes = 0;
  bool cooperative = false;
  void** parameters = nullptr;
  void** extra = nullptr;
};

// CUDA_ERROR_INVALID_VALUE for an impossible geometry, too much shared memory or missing parameters; CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES for
// more threads than the kernel was compiled for; CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE; CUDA_ERROR_INVALID_HANDLE for what is no kernel.
tl::expected<KernelWork, CUresult> check_launch(Context& context, const LaunchRequest& request);

// How many blocks of a kernel one multiprocessor holds at once.
uint32_t blocks_per_multiprocessor(const KernelInfo& info, uint32_t threads_per_block, uint32_t dynamic_shared_bytes);

}  // namespace gpuwire::software_device
