// The tables behind cuGetExportTable that cudart 11.8 to 13, cuBLAS and cuFFT require. The client's stub and the
// software device share them. The called slots, their arguments and the effects of their absence were measured on
// driver 580.159.04 (cudart 13) and with programs of cudart 11.8 and 12.4; docs/compatibility.md lists the facts. All
// other slots return CUDA_ERROR_NOT_SUPPORTED, and tables that are not needed (driver log, nvrtc's cache, NVML, CUPTI)
// are refused.
#pragma once

#include <cstdint>
#include <vector>

#include <cuda.h>

#include "protocol/cuda_abi/context_local_storage.hpp"
#include "protocol/cuda_abi/self_test.hpp"

namespace gpuwire::cuda_abi {

struct ModuleFunction {
  CUfunction function = nullptr;
  const char* name = nullptr;
};

// The functions that the tables need from the library that provides them. All members must be set. Any thread may call
// them, and they must not throw.
struct PrivateTableHost {
  // Like cuDriverGetVersion.
  int (*driver_version)() noexcept = nullptr;
  // Returns the handle that cuDevicePrimaryCtxRetain will return, without retaining the context. Does not write
  // *context if it returns CUDA_ERROR_INVALID_DEVICE.
  CUresult (*primary_context_handle)(CUcontext* context, CUdevice device) = nullptr;
  CUresult (*current_context)(CUcontext* context) = nullptr;                    // like cuCtxGetCurrent
  CUresult (*context_id)(CUcontext context, unsigned long long* id) = nullptr;  // like cuCtxGetId
  CUresult (*stream_id)(CUcontext context, CUstream stream,
                        unsigned long long* id) = nullptr;  // like cuStreamGetId, for that context
  CUresult (*module_functions)(CUcontext context, CUmodule module, std::vector<ModuleFunction>* functions) = nullptr;
  CUresult (*load_module)(CUmodule* module, const void* image) = nullptr;         // like cuModuleLoadData
  CUresult (*self_test_devices)(std::vector<SelfTestDevice>* devices) = nullptr;  // returns every device, in order
  void (*report)(const char* line) = nullptr;                                     // writes one line for the user, once
};

// Implements cuGetExportTable. The tables live as long as the process, so the host must have static storage and must be
// the same in every call. For a table that is not provided, returns CUDA_ERROR_INVALID_VALUE and sets *table to null.
CUresult get_export_table(const PrivateTableHost& host, const void** table, const CUuuid* id) noexcept;

// The storage behind CONTEXT_LOCAL_STORAGE. The host drops a context's values when it resets or destroys the context.
ContextLocalStorage& context_local_storage() noexcept;

}  // namespace gpuwire::cuda_abi
