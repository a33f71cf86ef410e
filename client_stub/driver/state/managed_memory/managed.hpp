// Managed allocations and variables: the functions for other families.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "client_stub/driver/state/memory/address_map.hpp"
#include "client_stub/driver/state/call/caller.hpp"

namespace gpuwire::client {

// cuMemFree of an address that cuMemAllocManaged gave.
CUresult free_managed(const Caller& caller, CUdeviceptr address);
// Managed allocations end with the context they were made in (measured on driver 580). Their ranges are out of the map
// already.
void forget_managed_of(const ContextState& context) noexcept;

// Makes a managed variable memory of the program: `range` is the variable's, [base, base + bytes) the driver's
// allocation that holds it. CUDA_ERROR_OUT_OF_MEMORY: something of the program's lies there.
CUresult map_managed_variable(AddressRange& range, uint64_t base, uint64_t bytes);
// Its module goes.
void forget_managed_variable(const AddressRange& range) noexcept;

}  // namespace gpuwire::client
