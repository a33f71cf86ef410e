// Managed memory, which the driver allocates. The client's threads access it through managed_read and managed_write, as
// the program's threads would natively: at any time, concurrently with kernels. So these calls never write a byte that
// the client did not change, and never wait for work of the device.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "server/driver_table.hpp"

namespace gpuwire::server {

struct ManagedRange {
  CUdeviceptr begin = 0;
  uint64_t bytes = 0;
};

// Finds the driver's mapping that contains `address`, and checks with the driver that all of it is managed memory,
// because the worker's own memory may lie next to it. One mapping may contain several allocations or variables.
// Executor; a context is current. CUDA_ERROR_INVALID_VALUE: the address is not in managed memory.
CUresult find_managed(const DriverTable& driver, CUdeviceptr address, ManagedRange& range);

}  // namespace gpuwire::server
