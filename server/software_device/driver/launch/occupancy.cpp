// Occupancy: how many blocks fit, by threads and shared memory.
#include <algorithm>

#include "server/software_device/driver/call/api.hpp"
#include "server/software_device/driver/module/function_lookup.hpp"
#include "server/software_device/driver/launch/launch_request.hpp"

using namespace gpuwire::software_device;

namespace {

constexpr unsigned kKnownFlags = CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE;

template <typename Body>
CUresult with_function(CUfunction handle, Body&& body) noexcept {
  return with_context([&](Context& context) -> CUresult {
    const auto function = find_function(context, handle);
    return function ? body((*function)->info()) : function.error();
  });
}

}  // namespace

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction handle, int block_size,
                                                              size_t shared_bytes, unsigned int flags) {
  return with_function(handle, [&](const KernelInfo& info) -> CUresult {
    if (blocks == nullptr || block_size <= 0 || (flags & ~kKnownFlags) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const auto shared = static_cast<uint32_t>(std::min<size_t>(shared_bytes, UINT32_MAX));
    *blocks = static_cast<int>(blocks_per_multiprocessor(info, static_cast<uint32_t>(block_size), shared));
    return CUDA_SUCCESS;
  });
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction handle, int block_size,
                                                     size_t shared_bytes) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, handle, block_size, shared_bytes,
                                                              CU_OCCUPANCY_DEFAULT);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid_size, int* block_size, CUfunction handle,
                                                   CUoccupancyB2DSize shared_of_block, size_t shared_bytes, int limit,
                                                   unsigned int flags) {
  return with_function(handle, [&](const KernelInfo& info) -> CUresult {
    if (grid_size == nullptr || block_size == nullptr || limit < 0 || (flags & ~kKnownFlags) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const uint32_t threads_max =
        limit == 0 ? info.max_threads_per_block : std::min(info.max_threads_per_block, static_cast<uint32_t>(limit));
    uint32_t best_active = 0;
    *grid_size = *block_size = 0;
    // From large to small, because the larger block wins if occupancies are equal.
    for (uint32_t threads = std::max(threads_max / kWarpSize * kWarpSize, std::min(threads_max, kWarpSize));
         threads >= 1; threads = threads > kWarpSize ? threads - kWarpSize : 0) {
      const size_t shared = shared_of_block != nullptr ? shared_of_block(static_cast<int>(threads)) : shared_bytes;
      const uint32_t blocks =
          blocks_per_multiprocessor(info, threads, static_cast<uint32_t>(std::min<size_t>(shared, UINT32_MAX)));
      if (blocks * threads > best_active) {
        best_active = blocks * threads;
        *block_size = static_cast<int>(threads);
        *grid_size = static_cast<int>(blocks * kMultiprocessors);
      }
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuOccupancyMaxPotentialBlockSize(int* grid_size, int* block_size, CUfunction handle,
                                          CUoccupancyB2DSize shared_of_block, size_t shared_bytes, int limit) {
  return cuOccupancyMaxPotentialBlockSizeWithFlags(grid_size, block_size, handle, shared_of_block, shared_bytes, limit,
                                                   CU_OCCUPANCY_DEFAULT);
}

namespace {

// NULL is reported before a fault, and is an invalid value here and not an unknown function as elsewhere (measured on
// driver 580).
template <typename Body>
CUresult about_clusters(const int* out, CUfunction handle, const CUlaunchConfig* config, Body&& body) {
  const bool asks = out != nullptr && handle != nullptr && config != nullptr;
  return with_arguments_first([&] { return asks ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }, std::forward<Body>(body));
}

}  // namespace

CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction handle, const CUlaunchConfig* config) {
  return about_clusters(clusters, handle, config, [&](Context& context) -> CUresult {
    const auto function = find_function(context, handle);
    const auto request = request_of_config(config, handle);
    if (!function || !request) {
      return !function ? function.error() : request.error();
    }
    const auto cluster = find_cluster(*request, **function);
    if (!cluster) {
      return cluster.error();
    }
    const uint32_t threads = request->block.x * request->block.y * request->block.z;
    *clusters = static_cast<int>(
        clusters_per_device((*function)->info(), threads, request->dynamic_shared_bytes, cluster->blocks()));
    return CUDA_SUCCESS;
  });
}

CUresult cuOccupancyMaxPotentialClusterSize(int* size, CUfunction handle, const CUlaunchConfig* config) {
  return about_clusters(size, handle, config, [&](Context& context) -> CUresult {
    const auto function = find_function(context, handle);
    const auto request = request_of_config(config, handle);
    if (!function || !request) {
      return !function ? function.error() : request.error();
    }
    const uint32_t threads = request->block.x * request->block.y * request->block.z;
    uint32_t largest = (*function)->settings->non_portable_cluster.load(std::memory_order_relaxed)
                           ? kClusterBlocksMax
                           : kPortableClusterBlocksMax;
    while (largest > 1 &&
           clusters_per_device((*function)->info(), threads, request->dynamic_shared_bytes, largest) == 0) {
      largest /= 2;
    }
    *size = static_cast<int>(largest);
    return CUDA_SUCCESS;
  });
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, CUfunction handle, int blocks, int block_size) {
  return with_function(handle, [&](const KernelInfo& info) -> CUresult {
    if (bytes == nullptr || blocks <= 0 || block_size <= 0 || blocks > static_cast<int>(kBlocksPerMultiprocessorMax)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const uint32_t each =
        std::min(kSharedBytesPerMultiprocessor / static_cast<uint32_t>(blocks) - kSharedBytesReservedPerBlock,
                 kSharedBytesPerBlock);
    *bytes = each > info.static_shared_bytes ? each - info.static_shared_bytes : 0;
    return CUDA_SUCCESS;
  });
}
