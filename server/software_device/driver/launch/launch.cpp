// Launches.
#include <cstring>
#include <vector>

#include "server/software_device/driver/call/api.hpp"
#include "server/software_device/driver/launch/launch_request.hpp"
#include "server/software_device/driver/call/refusal.hpp"
#include "server/software_device/driver/module/function_lookup.hpp"

using namespace gpuwire::software_device;

namespace {

CUresult launch(const LaunchRequest& request, CUstream handle) {
  return with_stream(handle, [&](Context& context, Stream& stream) -> CUresult {
    auto work = check_launch(context, request);
    if (!work) {
      // An impossible geometry makes a capture invalid (measured on driver 580).
      return possible_geometry(request) ? work.error() : invalidate_capture(stream, work.error());
    }
    if (const auto green = green_of(stream); green != nullptr) {
      work->processors = green->processors;
    }
    return enqueue(context, stream, *std::move(work));
  });
}

// Applies the effect of an attribute of cuLaunchKernelEx on the launch.
CUresult apply_attribute(const CUlaunchAttribute& attribute, LaunchRequest& request) {
  switch (attribute.id) {
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE: request.cooperative = attribute.value.cooperative != 0; return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: {
      const auto& cluster = attribute.value.clusterDim;
      request.cluster = {cluster.x, cluster.y, cluster.z};
      return cluster.x == 0 ? CUDA_ERROR_INVALID_CLUSTER_SIZE : CUDA_SUCCESS;
    }
    // Hints about priority, caching and overlap do not change results.
    case CU_LAUNCH_ATTRIBUTE_IGNORE:
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: return CUDA_SUCCESS;
    default: return not_supported("launch attribute " + std::to_string(attribute.id));
  }
}

}  // namespace

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                        CUstream stream, void** parameters, void** extra) {
  return launch({.function = function,
                 .grid = {grid_x, grid_y, grid_z},
                 .block = {block_x, block_y, block_z},
                 .dynamic_shared_bytes = shared_bytes,
                 .parameters = parameters,
                 .extra = extra},
                stream);
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                   unsigned int block_x, unsigned int block_y, unsigned int block_z,
                                   unsigned int shared_bytes, CUstream stream, void** parameters) {
  return launch({.function = function,
                 .grid = {grid_x, grid_y, grid_z},
                 .block = {block_x, block_y, block_z},
                 .dynamic_shared_bytes = shared_bytes,
                 .cooperative = true,
                 .parameters = parameters},
                stream);
}

tl::expected<LaunchRequest, CUresult> gpuwire::software_device::request_of_config(const CUlaunchConfig* config,
                                                                                  CUfunction function) {
  if (config == nullptr || (config->numAttrs != 0 && config->attrs == nullptr)) {
    return tl::unexpected(CUDA_ERROR_INVALID_VALUE);
  }
  LaunchRequest request{.function = function,
                        .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
                        .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
                        .dynamic_shared_bytes = config->sharedMemBytes};
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (const CUresult result = apply_attribute(config->attrs[i], request); result != CUDA_SUCCESS) {
      return tl::unexpected(result);
    }
  }
  return request;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {
  auto request = request_of_config(config, function);
  if (config == nullptr) {
    return request.error();
  }
  // A fault is reported before an unknown function, that before a missing context, and all before an attribute's error.
  const CUresult wrong = with_context_or_none([&](Context* context) -> CUresult {
    if (context == nullptr) {
      return is_function(function) ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
    }
    if (request) {
      return CUDA_SUCCESS;
    }
    const auto found = find_function(*context, function);
    return found ? request.error() : found.error();
  });
  if (wrong != CUDA_SUCCESS) {
    return wrong;
  }
  request->parameters = parameters;
  request->extra = extra;
  return launch(*request, config->hStream);
}
