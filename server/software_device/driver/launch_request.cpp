#include "server/software_device/driver/launch_request.hpp"

#include <algorithm>
#include <climits>
#include <cstring>

#include "server/software_device/driver/driver_state.hpp"
#include "server/software_device/driver/function_lookup.hpp"

namespace gpuwire::software_device {
namespace {

constexpr uint32_t kGridYzMax = 65535;
constexpr uint32_t kBlockZMax = 64;
constexpr int kExtraEntriesMax = 16;

bool possible_geometry(const Dim3& grid, const Dim3& block) {
  const bool grid_fits = grid.x >= 1 && grid.y >= 1 && grid.z >= 1 && grid.x <= INT_MAX && grid.y <= kGridYzMax && grid.z <= kGridYzMax;
  const bool block_fits = block.x >= 1 && block.y >= 1 && block.z >= 1 && block.x <= kThreadsPerBlockMax && block.y <= kThreadsPerBlockMax &&
                          block.z <= kBlockZMax && static_cast<uint64_t>(block.x) * block.y * block.z <= kThreadsPerBlockMax;
  return grid_fits && block_fits;
}

// The buffer that `extra` names, when it is well formed.
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
  // A buffer that ends in padding may be longer than the last parameter; one that is shorter leaves something out.
  if (*bytes < packed.size()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::memcpy(packed.data(), buffer, packed.size());
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
  return request.extra != nullptr ? read_extra(request.extra, packed) : read_parameters(info, request.parameters, packed);
}

CUresult check_resources(const LaunchRequest& request, const Function& function) {
  const KernelInfo& info = function.info();
  const uint32_t threads = request.block.x * request.block.y * request.block.z;
  if (request.dynamic_shared_bytes > dynamic_shared_bytes_max(info, *function.settings)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (threads > info.max_threads_per_block) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (request.cooperative) {
    const uint64_t blocks = static_cast<uint64_t>(request.grid.x) * request.grid.y * request.grid.z;
    if (blocks > static_cast<uint64_t>(kMultiprocessors) * blocks_per_multiprocessor(info, threads, request.dynamic_shared_bytes)) {
      return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace

uint32_t blocks_per_multiprocessor(const KernelInfo& info, uint32_t threads_per_block, uint32_t dynamic_shared_bytes) {
  if (threads_per_block == 0 || threads_per_block > info.max_threads_per_block) {
    return 0;
  }
  const uint32_t threads = (threads_per_block + kWarpSize - 1) / kWarpSize * kWarpSize;
  const uint64_t shared = static_cast<uint64_t>(info.static_shared_bytes) + dynamic_shared_bytes;
  const uint64_t by_shared = shared == 0 ? kBlocksPerMultiprocessorMax : kSharedBytesPerMultiprocessor / shared;
  return static_cast<uint32_t>(std::min<uint64_t>({kBlocksPerMultiprocessorMax, kThreadsPerMultiprocessorMax / threads, by_shared}));
}

tl::expected<KernelWork, CUresult> check_launch(Context& context, const LaunchRequest& request) {
  const auto function = find_function(context, request.function);
  if (!function) {
    return tl::unexpected(function.error());
  }
  if (!possible_geometry(request.grid, request.block)) {
    return tl::unexpected(CUDA_ERROR_INVALID_VALUE);
  }
  if (const CUresult result = check_resources(request, **function); result != CUDA_SUCCESS) {
    return tl::unexpected(result);
  }
  KernelWork work{.function = *function, .module = (*function)->module.lock(), .grid = request.grid, .block = request.block,
                  .dynamic_shared_bytes = request.dynamic_shared_bytes, .cooperative = request.cooperative};
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
