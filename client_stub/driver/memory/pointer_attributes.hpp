// The answers of cuPointerGetAttribute, from the client's map of addresses.
#pragma once

#include <cuda.h>

#include <optional>

#include "client_stub/driver/memory/address_map.hpp"

namespace gpuwire::client {

// Writes one attribute of `pointer` to `data`, in the width that the driver uses (booleans and masks: 4 bytes). Without
// a range the value is the one that cuPointerGetAttributes gives for unknown memory, and the result is
// CUDA_ERROR_INVALID_VALUE, which that function ignores. CUDA_ERROR_NOT_SUPPORTED: the attribute is not available here.
CUresult pointer_attribute(CUpointer_attribute attribute, CUdeviceptr pointer, const std::optional<AddressRange>& range,
                           void* data);

}  // namespace gpuwire::client
