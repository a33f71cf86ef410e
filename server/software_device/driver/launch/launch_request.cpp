#include "server/software_device/driver/launch/launch_request.hpp"

#include <algorithm>
#include <climits>
#include <cstring>

#include "server/software_device/driver/call/driver_state.hpp"
#include "server/software_device/driver/module/function_lookup.hpp"

namespace gpuwire::software_device {
namespace {

constexpr uint32_t kGridYzMax = 65535;
constexpr uint32_t kBlockZMax = 64;
constexpr int kExtraEntriesMax = 16;

// Reads the parameter buffer that `extra` refers to, if it is well-formed.
CUresult read_extra(void** extra, std::vector<uint8_t>& packed) {
  const void* buffer = nullptr;
  const size_t* bytes = nullptr;
  for (int i = 0; i < kExtraEntriesMax && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
    if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = extra[i + 1];
    } else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      bytes = static_cast<const size_t*>(extra[i + 1]);
    } else {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  if (packed.empty()) {
    return CUDA_SUCCESS;
  }
  if (buffer == nullptr || bytes == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // A buffer that ends in padding may be longer than the last parameter. A shorter buffer omits parameters that the
  // kernel does not read.
  std::memcpy(packed.data(), buffer, std::min(*bytes, packed.size()));
  return CUDA_SUCCESS;
}

CUresult read_parameters(const KernelInfo& info, void** parameters, std::vector<uint8_t>& packed) {
  if (info.parameters.empty()) {
    return CUDA_SUCCESS;
  }
  if (parameters == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 0; i < info.parameters.size(); ++i) {
    if (parameters[i] == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    std::memcpy(packed.data() + info.parameters[i].offset_bytes, parameters[i], info.parameters[i].size_bytes);
  }
  return CUDA_SUCCESS;
}

CUresult pack_parameters(const LaunchRequest& request, const KernelInfo& info, std::vector<uint8_t>& packed) {
  if (request.parameters != nullptr && request.extra != nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  packed.assign(info.parameter_bytes, 0);
  return request.extra != nullptr ? read_extra(request.extra, packed)
                                  : read_parameters(info, request.parameters, packed);
}

// Registers are allocated to warps, in units.
uint32_t registers_per_warp(const KernelInfo& info) {
  constexpr uint32_t kRegisterUnit = 256;
  return (std::min(info.registers_per_thread, kRegistersPerThreadMax) * kWarpSize + kRegisterUnit - 1) / kRegisterUnit *
         kRegisterUnit;
}

uint32_t warps_of(uint32_t threads) { return (threads + kWarpSize - 1) / kWarpSize; }

CUresult check_resources(const LaunchRequest& request, const Function& function) {
  const KernelInfo& info = function.info();
  const uint32_t threads = request.block.x * request.block.y * request.block.z;
  if (request.dynamic_shared_bytes > dynamic_shared_bytes_max(info, *function.settings)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (threads > info.max_threads_per_block) {
    return registers_per_warp(info) * warps_of(threads) > kRegistersPerMultiprocessor
               ? CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
               : CUDA_ERROR_INVALID_VALUE;
  }
  if (request.cooperative) {
    const uint64_t blocks = static_cast<uint64_t>(request.grid.x) * request.grid.y * request.grid.z;
    if (blocks > static_cast<uint64_t>(kMultiprocessors) *
                     blocks_per_multiprocessor(info, threads, request.dynamic_shared_bytes)) {
      return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace

// Follows the rules of the toolkit's occupancy calculator: warps, registers in units per warp, shared memory with the
// driver's own part.
uint32_t blocks_per_multiprocessor(const KernelInfo& info, uint32_t threads_per_block, uint32_t dynamic_shared_bytes) {
  constexpr uint32_t kSharedUnit = 128;
  if (threads_per_block == 0 || threads_per_block > info.max_threads_per_block) {
    return 0;
  }
  const uint32_t warps = warps_of(threads_per_block);
  const uint64_t asked = static_cast<uint64_t>(info.static_shared_bytes) + dynamic_shared_bytes;
  if (asked > kSharedBytesPerBlockOptIn) {
    return 0;
  }
  const uint64_t shared = (asked + kSharedBytesReservedPerBlock + kSharedUnit - 1) / kSharedUnit * kSharedUnit;
  return static_cast<uint32_t>(std::min<uint64_t>(
      {kBlocksPerMultiprocessorMax, kThreadsPerMultiprocessorMax / kWarpSize / warps,
       kRegistersPerMultiprocessor / (registers_per_warp(info) * warps), kSharedBytesPerMultiprocessor / shared}));
}

uint32_t clusters_per_device(const KernelInfo& info, uint32_t threads_per_block, uint32_t dynamic_shared_bytes,
                             uint32_t cluster_blocks) {
  return kMultiprocessors * blocks_per_multiprocessor(info, threads_per_block, dynamic_shared_bytes) / cluster_blocks;
}

tl::expected<ClusterShape, CUresult> find_cluster(const LaunchRequest& request, const Function& function) {
  const Dim3& required = function.info().required_cluster;
  const Dim3& asked = request.cluster;
  const bool compiled = required.x != 0, given = asked.x != 0;
  if (given && (asked.y == 0 || asked.z == 0)) {
    return tl::unexpected(CUDA_ERROR_INVALID_CLUSTER_SIZE);
  }
  if (given && compiled && (asked.x != required.x || asked.y != required.y || asked.z != required.z)) {
    return tl::unexpected(CUDA_ERROR_INVALID_CLUSTER_SIZE);
  }
  const ClusterShape shape{given ? asked : compiled ? required : Dim3{}, given || compiled};
  const uint32_t largest = function.settings->non_portable_cluster.load(std::memory_order_relaxed)
                               ? kClusterBlocksMax
                               : kPortableClusterBlocksMax;
  if (uint64_t{shape.extent.x} * shape.extent.y * shape.extent.z > largest || shape.extent.x > largest ||
      shape.extent.y > largest || shape.extent.z > largest) {
    return tl::unexpected(CUDA_ERROR_INVALID_CLUSTER_SIZE);
  }
  if (request.grid.x % shape.extent.x != 0 || request.grid.y % shape.extent.y != 0 ||
      request.grid.z % shape.extent.z != 0) {
    return tl::unexpected(CUDA_ERROR_INVALID_CLUSTER_SIZE);
  }
  return shape;
}

bool possible_geometry(const LaunchRequest& request) {
  const Dim3 &grid = request.grid, &block = request.block;
  const bool grid_fits =
      grid.x >= 1 && grid.y >= 1 && grid.z >= 1 && grid.x <= INT_MAX && grid.y <= kGridYzMax && grid.z <= kGridYzMax;
  const bool block_fits = block.x >= 1 && block.y >= 1 && block.z >= 1 && block.x <= kThreadsPerBlockMax &&
                          block.y <= kThreadsPerBlockMax && block.z <= kBlockZMax &&
                          static_cast<uint64_t>(block.x) * block.y * block.z <= kThreadsPerBlockMax;
  return grid_fits && block_fits;
}

tl::expected<KernelWork, CUresult> check_launch(Context& context, const LaunchRequest& request) {
  const auto function = find_function(context, request.function);
  if (!function) {
    return tl::unexpected(function.error());
  }
  if (!possible_geometry(request)) {
    return tl::unexpected(CUDA_ERROR_INVALID_VALUE);
  }
  if (const CUresult result = check_resources(request, **function); result != CUDA_SUCCESS) {
    return tl::unexpected(result);
  }
  const auto cluster = find_cluster(request, **function);
  if (!cluster) {
    return tl::unexpected(cluster.error());
  }
  KernelWork work{.function = *function,
                  .module = (*function)->module.lock(),
                  .grid = request.grid,
                  .block = request.block,
                  .cluster = cluster->extent,
                  .explicit_cluster = cluster->explicit_one,
                  .dynamic_shared_bytes = request.dynamic_shared_bytes,
                  .cooperative = request.cooperative};
  if (kind_of(request.function) == HandleKind::kernel) {
    work.kernel = reinterpret_cast<CUkernel>(request.function);
  }
  if (work.module == nullptr) {
    return tl::unexpected(CUDA_ERROR_INVALID_HANDLE);
  }
  if (const CUresult result = pack_parameters(request, (*function)->info(), work.parameters); result != CUDA_SUCCESS) {
    return tl::unexpected(result);
  }
  return work;
}

}  // namespace gpuwire::software_device
