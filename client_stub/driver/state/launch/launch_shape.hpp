// The parts of a launch that need no server: is its geometry possible, where are its parameters, and how they are
// packed.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "protocol/fatbin/kernel_parameters.hpp"

namespace gpuwire::client {

struct LaunchShape {
  uint32_t grid[3] = {};
  uint32_t block[3] = {};
  uint32_t shared_bytes = 0;

  uint64_t block_threads() const noexcept { return uint64_t(block[0]) * block[1] * block[2]; }
  uint64_t blocks() const noexcept { return uint64_t(grid[0]) * grid[1] * grid[2]; }
};

// CUDA_ERROR_INVALID_VALUE when no kernel can be launched in this shape on a device with these CUdevice_attribute
// values; as measured on driver 580 (cudart shows cudaErrorInvalidValue, not cudaErrorInvalidConfiguration). A device
// without reported attributes has no bounds.
CUresult check_shape(const LaunchShape& shape, std::span<const int32_t> device_attributes) noexcept;

// Can the registers of one multiprocessor hold a block of this many threads? A device without reported attributes has
// no bounds.
bool registers_fit(uint32_t registers_per_thread, uint64_t block_threads,
                   std::span<const int32_t> device_attributes) noexcept;

// Where a launch's parameters are: one by one (kernelParams) or already packed (`extra`).
struct LaunchParameters {
  void** each = nullptr;
  const std::byte* packed = nullptr;
  size_t packed_bytes = 0;
};

// Blocks of a grid that run together. A dimension of 0 in all three: none.
struct ClusterShape {
  uint32_t size[3] = {};

  bool any() const noexcept { return size[0] || size[1] || size[2]; }
};

// CUDA_ERROR_INVALID_CLUSTER_SIZE, as driver 580 answers on an H200: the grid is no multiple of the cluster, the
// launch's cluster is not the one that the kernel was compiled for, or it is larger than portable ones may be (8
// blocks; 16 where the kernel allows it).
CUresult check_cluster(const LaunchShape& shape, const ClusterShape& launched, const ClusterShape& compiled,
                       bool non_portable) noexcept;

// CUDA_ERROR_INVALID_VALUE: both or neither form is given, or parameters are wanted and no buffer is given. A buffer
// may be shorter than the parameters (NCCL's are): the rest is zero; natively nobody reads it.
CUresult find_parameters(void** kernel_params, void** extra, uint32_t parameter_bytes, LaunchParameters& out) noexcept;

// How the program's parameters are read.
enum class Reading : uint8_t {
  as_natively,    // the program has as many as it is read
  what_is_there,  // only the server knows their number: an unmapped buffer must not end the program
};

// Fills `out`, which is zeroed and has as many bytes as the parameters. CUDA_ERROR_INVALID_VALUE: a parameter's address
// is NULL, or nothing is there.
CUresult pack_parameters(const LaunchParameters& parameters, const fatbin::ParameterLayout& layout,
                         std::span<std::byte> out, Reading reading = Reading::as_natively) noexcept;

}  // namespace gpuwire::client
