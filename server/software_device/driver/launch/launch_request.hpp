// Checks a launch and packs its parameters.
#pragma once

#include <cuda.h>
#include <tl/expected.hpp>

#include "server/software_device/driver/stream/stream_work.hpp"

namespace gpuwire::software_device {

struct LaunchRequest {
  CUfunction function = nullptr;  // or a CUkernel
  Dim3 grid, block;
  Dim3 cluster{0, 0, 0};  // zero: the cluster for which the kernel was compiled
  uint32_t dynamic_shared_bytes = 0;
  bool cooperative = false;
  void** parameters = nullptr;
  void** extra = nullptr;
};

// Errors: CUDA_ERROR_INVALID_VALUE for an impossible geometry, too much shared memory or missing parameters;
// CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES for more threads than the kernel was compiled for;
// CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE; CUDA_ERROR_INVALID_HANDLE for a handle that is not a kernel.
tl::expected<KernelWork, CUresult> check_launch(Context& context, const LaunchRequest& request);
// Returns whether grids and blocks of these dimensions are possible for any kernel.
bool possible_geometry(const LaunchRequest& request);

// Converts a configuration to a launch without parameters. Errors: CUDA_ERROR_INVALID_VALUE; CUDA_ERROR_NOT_SUPPORTED
// for an unknown attribute that changes the effect of a launch.
tl::expected<LaunchRequest, CUresult> request_of_config(const CUlaunchConfig* config, CUfunction function);

// The cluster of a launch: the requested one, or the one that the kernel requires, or one block. Errors:
// CUDA_ERROR_INVALID_CLUSTER_SIZE, CUDA_ERROR_INVALID_VALUE.
struct ClusterShape {
  Dim3 extent;
  bool explicit_one = false;
  uint32_t blocks() const { return extent.x * extent.y * extent.z; }
};
tl::expected<ClusterShape, CUresult> find_cluster(const LaunchRequest& request, const Function& function);

// Returns how many clusters of that size fit on the device at once.
uint32_t clusters_per_device(const KernelInfo& info, uint32_t threads_per_block, uint32_t dynamic_shared_bytes,
                             uint32_t cluster_blocks);

// Returns how many blocks of a kernel fit on one multiprocessor at once.
uint32_t blocks_per_multiprocessor(const KernelInfo& info, uint32_t threads_per_block, uint32_t dynamic_shared_bytes);

}  // namespace gpuwire::software_device
