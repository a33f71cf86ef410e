// Memory for ranges: taken from the process, charged to a device, entered into the table.
#pragma once

#include <cstdint>
#include <memory>

#include <cuda.h>
#include <tl/expected.hpp>

#include "server/software_device/driver/memory/memory_table.hpp"

namespace gpuwire::software_device {

struct Device;

// cuMemAlloc promises 256; kernels and libraries rely on 512.
inline constexpr uint64_t kAllocationAlignment = 512;
inline constexpr uint64_t kPageBytes = 4096;

// Allocates `range.bytes` bytes, fills in begin and backing, and enters the range into the driver's table. Device and
// managed memory is charged to the device while the backing lives. CUDA_ERROR_OUT_OF_MEMORY.
tl::expected<uint64_t, CUresult> allocate_range(MemoryRange range, Device& device,
                                                uint64_t alignment_bytes = kAllocationAlignment);

// The range is gone from the table: its pool, if any, has this much less in use.
void leave_pool(const MemoryRange& range) noexcept;

// Zeroed memory charged to the device while it lives, in no table: kernels cannot reach it by address.
// CUDA_ERROR_OUT_OF_MEMORY.
tl::expected<std::shared_ptr<void>, CUresult> take_storage(uint64_t bytes, Device& device);

}  // namespace gpuwire::software_device
