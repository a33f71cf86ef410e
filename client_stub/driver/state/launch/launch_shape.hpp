// The parts of a launch that need no server: the check of its geometry, and the packing of its parameters.
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

// Returns CUDA_ERROR_INVALID_VALUE if no kernel can be launched in this shape on a device with these CUdevice_attribute
// values, as measured on driver 580 (cudart shows cudaErrorInvalidValue, not cudaErrorInvalidConfiguration). A device
// without reported attributes has no bounds.
CUresult check_shape(const LaunchShape& shape, std::span<const int32_t> device_attributes) noexcept;

// Returns whether the registers of one multiprocessor can hold a block of this many threads. A device without reported
// attributes has no bounds.
bool registers_fit(uint32_t registers_per_thread, uint64_t block_threads,
                   std::span<const int32_t> device_attributes) noexcept;

// The location of a launch's parameters: one by one (kernelParams) or packed (`extra`).
struct LaunchParameters {
  void** each = nullptr;
  const std::byte* packed = nullptr;
  size_t packed_bytes = 0;
};

// Blocks of a grid that run together; all three dimensions 0: none.
struct ClusterShape {
  uint32_t size[3] = {};

  bool any() const noexcept { return size[0] || size[1] || size[2]; }
};

// CUDA_ERROR_INVALID_CLUSTER_SIZE, as driver 580 answers on an H200: the grid is no multiple of the cluster, the
// launch's cluster is not the one that the kernel was compiled for, or it is larger than portable ones may be (8
// blocks; 16 where the kernel allows it).
CUresult check_cluster(const LaunchShape& shape, const ClusterShape& launched, const ClusterShape& compiled,
                       bool non_portable) noexcept;

// CUDA_ERROR_INVALID_VALUE: both or neither form is given, or parameters are required without a buffer. A buffer may be
// shorter than the parameters (NCCL's are): the remaining bytes are zero, which natively no kernel reads.
CUresult find_parameters(void** kernel_params, void** extra, uint32_t parameter_bytes, LaunchParameters& out) noexcept;

// How the client reads the program's parameters.
enum class Reading : uint8_t {
  as_natively,    // the program has all bytes that are read
  what_is_there,  // only the server knows their number: an unmapped buffer must not end the program
};

// Fills `out`, which is zeroed and has the parameters' size. CUDA_ERROR_INVALID_VALUE: a parameter's address is NULL or
// unmapped.
CUresult pack_parameters(const LaunchParameters& parameters, const fatbin::ParameterLayout& layout,
                         std::span<std::byte> out, Reading reading = Reading::as_natively) noexcept;

}  // namespace gpuwire::client
