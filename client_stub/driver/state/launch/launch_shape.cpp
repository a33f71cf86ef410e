#include "client_stub/driver/state/launch/launch_shape.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace gpuwire::client {

CUresult check_shape(const LaunchShape& shape, std::span<const int32_t> device_attributes) noexcept {
  constexpr CUdevice_attribute kGridMax[] = {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
                                             CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z};
  constexpr CUdevice_attribute kBlockMax[] = {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
                                              CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z};
  auto above = [&](uint64_t value, CUdevice_attribute bound) {
    return size_t(bound) < device_attributes.size() && device_attributes[bound] > 0 &&
           value > uint64_t(device_attributes[bound]);
  };
  for (int i = 0; i < 3; ++i) {
    if (shape.grid[i] == 0 || shape.block[i] == 0) return CUDA_ERROR_INVALID_VALUE;
    if (above(shape.grid[i], kGridMax[i]) || above(shape.block[i], kBlockMax[i])) return CUDA_ERROR_INVALID_VALUE;
  }
  if (above(shape.block_threads(), CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

bool registers_fit(uint32_t registers_per_thread, uint64_t block_threads,
                   std::span<const int32_t> device_attributes) noexcept {
  // CUDA C++ Programming Guide, "Compute Capabilities": registers are allocated per warp, in units of 256.
  constexpr uint64_t kWarpThreads = 32, kUnit = 256;
  if (device_attributes.size() <= CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK) return true;
  uint64_t of_warp = (registers_per_thread * kWarpThreads + kUnit - 1) / kUnit * kUnit;
  uint64_t warps = (block_threads + kWarpThreads - 1) / kWarpThreads;
  return of_warp * warps <= uint64_t(device_attributes[CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK]);
}

CUresult check_cluster(const LaunchShape& shape, const ClusterShape& launched, const ClusterShape& compiled,
                       bool non_portable) noexcept {
  constexpr uint64_t kPortableBlocksMax = 8, kBlocksMax = 16;  // CUDA C++ Programming Guide, "Thread Block Clusters"
  if (!launched.any() && !compiled.any()) return CUDA_SUCCESS;
  const ClusterShape& cluster = launched.any() ? launched : compiled;
  uint64_t blocks = 1;
  for (int i = 0; i < 3; ++i) {
    if (cluster.size[i] == 0 || shape.grid[i] % cluster.size[i] != 0) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    if (compiled.any() && cluster.size[i] != compiled.size[i]) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    if (cluster.size[i] > kBlocksMax) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    blocks *= cluster.size[i];
  }
  return blocks > (non_portable ? kBlocksMax : kPortableBlocksMax) ? CUDA_ERROR_INVALID_CLUSTER_SIZE : CUDA_SUCCESS;
}

CUresult find_parameters(void** kernel_params, void** extra, uint32_t parameter_bytes, LaunchParameters& out) noexcept {
  out = {};
  if (kernel_params && extra) return CUDA_ERROR_INVALID_VALUE;
  if (kernel_params) {
    out.each = kernel_params;
    return CUDA_SUCCESS;
  }
  // The list ends at CU_LAUNCH_PARAM_END; cuda.h has two other entries, each with a value.
  for (void** entry = extra; entry && *entry != CU_LAUNCH_PARAM_END; entry += 2) {
    if (*entry == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      out.packed = static_cast<const std::byte*>(entry[1]);
    } else if (*entry == CU_LAUNCH_PARAM_BUFFER_SIZE && entry[1]) {
      out.packed_bytes = *static_cast<const size_t*>(entry[1]);
    } else {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  if (parameter_bytes > 0 && !out.packed) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

namespace {

// Copies memory of this process by a system call, which fails for unmapped addresses.
bool copy_what_is_there(void* to, const void* from, size_t bytes) noexcept {
  if (bytes == 0) return true;
  const iovec out{to, bytes}, in{const_cast<void*>(from), bytes};
  const ssize_t copied = process_vm_readv(getpid(), &out, 1, &in, 1, 0);
  if (copied >= 0 || (errno != ENOSYS && errno != EPERM)) return copied == ssize_t(bytes);
  std::memcpy(to, from, bytes);  // the system forbids the call
  return true;
}

}  // namespace

CUresult pack_parameters(const LaunchParameters& parameters, const fatbin::ParameterLayout& layout,
                         std::span<std::byte> out, Reading reading) noexcept {
  if (out.empty()) return CUDA_SUCCESS;
  if (parameters.packed) {
    std::memcpy(out.data(), parameters.packed, std::min(out.size(), parameters.packed_bytes));
    return CUDA_SUCCESS;
  }
  for (size_t i = 0; i < layout.offsets.size(); ++i) {
    std::byte* const to = out.data() + layout.offsets[i];
    if (reading == Reading::as_natively) {
      if (!parameters.each[i]) return CUDA_ERROR_INVALID_VALUE;
      std::memcpy(to, parameters.each[i], layout.sizes[i]);
      continue;
    }
    void* from = nullptr;
    if (!copy_what_is_there(&from, parameters.each + i, sizeof from) || !from ||
        !copy_what_is_there(to, from, layout.sizes[i]))
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

}  // namespace gpuwire::client
