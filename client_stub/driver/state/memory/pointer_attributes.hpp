// The answers of cuPointerGetAttribute, from the client's map of addresses.
#pragma once

#include <cuda.h>

#include <optional>

#include "client_stub/driver/state/memory/address_map.hpp"

namespace gpuwire::client {

// Writes one attribute of `pointer`, which lies in `range`, to `data`, in the width that the driver uses (booleans and
// masks: 4 bytes). An attribute that such memory does not have is 0, and the result is CUDA_ERROR_INVALID_VALUE
// (measured on driver 580). If there is no such attribute, nothing is written beside that error.
CUresult pointer_attribute(CUpointer_attribute attribute, CUdeviceptr pointer, const AddressRange& range, void* data);

// The value that cuPointerGetAttributes gives of memory that CUDA does not know, or only as a reserved range without
// memory.
void unknown_pointer_attribute(CUpointer_attribute attribute, CUdeviceptr pointer, void* data);

}  // namespace gpuwire::client
