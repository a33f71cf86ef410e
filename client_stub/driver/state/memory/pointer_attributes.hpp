// The answers of cuPointerGetAttribute, from the client's map of addresses.
#pragma once

#include <cuda.h>

#include <optional>

#include "client_stub/driver/state/memory/address_map.hpp"

namespace gpuwire::client {

// Writes one attribute of `pointer`, which lies in `range`, to `data`, in the width that the driver uses (booleans and
// masks: 4 bytes). If the memory has no such attribute, the value is 0, and the result is CUDA_ERROR_INVALID_VALUE
// (measured on driver 580). An unknown attribute has the same result and writes nothing.
CUresult pointer_attribute(CUpointer_attribute attribute, CUdeviceptr pointer, const AddressRange& range, void* data);

// The values of cuPointerGetAttributes for memory that CUDA does not know, or only as a reserved range without memory.
void unknown_pointer_attribute(CUpointer_attribute attribute, CUdeviceptr pointer, void* data);

}  // namespace gpuwire::client
