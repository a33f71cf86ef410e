// Allocates memory for ranges, charges it to a device and enters it into the table.
#pragma once

#include <cstdint>
#include <memory>

#include <cuda.h>
#include <tl/expected.hpp>

#include "server/software_device/driver/memory/memory_table.hpp"

namespace gpuwire::software_device {

struct Device;

// cuMemAlloc guarantees 256, but kernels and libraries rely on 512.
inline constexpr uint64_t kAllocationAlignment = 512;
inline constexpr uint64_t kPageBytes = 4096;

// Allocates `range.bytes` bytes, sets begin and backing, and enters the range into the driver's table. Device and
// managed memory is charged to the device while the backing lives. Error: CUDA_ERROR_OUT_OF_MEMORY.
tl::expected<uint64_t, CUresult> allocate_range(MemoryRange range, Device& device,
                                                uint64_t alignment_bytes = kAllocationAlignment);

// The range has left the table: decreases the used bytes of its pool, if it has one.
void leave_pool(const MemoryRange& range) noexcept;

// Returns zeroed memory, charged to the device while it lives. It is in no table, so kernels cannot access it by
// address. Error: CUDA_ERROR_OUT_OF_MEMORY.
tl::expected<std::shared_ptr<void>, CUresult> take_storage(uint64_t bytes, Device& device);

}  // namespace gpuwire::software_device
