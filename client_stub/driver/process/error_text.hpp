// Names and texts of CUresult values.
#pragma once

#include <cuda.h>

namespace gpuwire::client {

// Null for numbers that are no CUresult.
const char* error_name(CUresult result) noexcept;
const char* error_string(CUresult result) noexcept;

}  // namespace gpuwire::client
