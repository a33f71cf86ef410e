// The rules of cuGetProcAddress as a pure lookup: name, version and flags to the name of the exported symbol.
#pragma once

#include <cstdint>
#include <string_view>

#include <cuda.h>

namespace gpuwire::cuda_abi {

// The answer of cuGetProcAddress_v2, with the function's symbol in place of its address.
struct ProcAddress {
  CUresult result = CUDA_SUCCESS;
  // The exported symbol, terminated by zero; null: no function. When `result` is an error, nothing is to be written to
  // the caller.
  const char* symbol = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
};

// Resolves as the driver does: the newest ABI introduced at or before `version`; with per-thread flags its _ptds or
// _ptsz variant. A version newer than the driver is CUDA_ERROR_INVALID_VALUE; an unknown name or a version that is too
// old is a success without a function.
ProcAddress resolve_proc_address(std::string_view name, int version, cuuint64_t flags, int driver_version) noexcept;

}  // namespace gpuwire::cuda_abi
