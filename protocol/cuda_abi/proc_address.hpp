// The rules of cuGetProcAddress as a pure lookup from name, version and flags to the name of the exported symbol.
#pragma once

#include <cstdint>
#include <string_view>

#include <cuda.h>

namespace gpuwire::cuda_abi {

// The result of cuGetProcAddress_v2, with the function's symbol instead of its address.
struct ProcAddress {
  CUresult result = CUDA_SUCCESS;
  // The exported symbol, zero-terminated; null: no function. If `result` is an error, the caller's output is not
  // written.
  const char* symbol = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
};

// Resolves a name like the driver: to the newest ABI introduced at or before `version`, and with the per-thread flag to
// its _ptds or _ptsz variant. A version newer than the driver returns CUDA_ERROR_INVALID_VALUE. An unknown name, or a
// version that is too old, is a success without a function.
ProcAddress resolve_proc_address(std::string_view name, int version, cuuint64_t flags, int driver_version) noexcept;

}  // namespace gpuwire::cuda_abi
