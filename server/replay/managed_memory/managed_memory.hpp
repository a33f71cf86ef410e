// Managed memory: the driver's own. The client's threads see it through managed_read and managed_write, which touch it
// when the program's threads would natively: at any time, beside running kernels. So a byte that the client did not
// change is never written, and nothing waits for work of the device.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "server/driver_table.hpp"

namespace gpuwire::server {

struct ManagedRange {
  CUdeviceptr begin = 0;
  uint64_t bytes = 0;
};

// The driver's mapping that holds `address`, of which the whole is managed memory (several allocations or variables may
// lie in one), by the driver's word: the worker's own memory lies beside it. Executor, with a context.
// CUDA_ERROR_INVALID_VALUE: it is no managed memory.
CUresult find_managed(const DriverTable& driver, CUdeviceptr address, ManagedRange& range);

}  // namespace gpuwire::server
