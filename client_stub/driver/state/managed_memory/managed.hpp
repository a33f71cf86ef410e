// Managed allocations and variables: the functions for other families.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "client_stub/driver/state/memory/address_map.hpp"
#include "client_stub/driver/state/call/caller.hpp"

namespace gpuwire::client {

// Frees memory of cuMemAllocManaged, for cuMemFree.
CUresult free_managed(const Caller& caller, CUdeviceptr address);
// Ends the managed allocations of a context, which end with it (measured on driver 580). Precondition: the map no
// longer has their ranges.
void forget_managed_of(const ContextState& context) noexcept;

// Makes a managed variable accessible to the program: `range` is the variable's, [base, base + bytes) the driver's
// allocation around it. CUDA_ERROR_OUT_OF_MEMORY: a mapping of the program is there.
CUresult map_managed_variable(AddressRange& range, uint64_t base, uint64_t bytes);
// Ends the program's access to a managed variable, whose module is unloaded.
void forget_managed_variable(const AddressRange& range) noexcept;

}  // namespace gpuwire::client
