// The tables behind cuGetExportTable that cudart 11.8 to 13, cuBLAS and cuFFT require, shared by the client's stub and
// the software device. The called slots, their arguments and the effects of their absence were measured on driver
// 580.159.04 (cudart 13) and by programs of cudart 11.8 and 12.4; docs/compatibility.md has the facts. All other slots
// answer CUDA_ERROR_NOT_SUPPORTED, and unneeded tables (driver log, nvrtc's cache, NVML, CUPTI) are refused.
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

// The functions that the tables need from the library that hands them out. All members must be set; all are called from
// any thread and must not throw.
struct PrivateTableHost {
  int (*driver_version)() noexcept = nullptr;  // as cuDriverGetVersion says
  // The handle that cuDevicePrimaryCtxRetain will return, without retaining anything. CUDA_ERROR_INVALID_DEVICE leaves
  // *context alone.
  CUresult (*primary_context_handle)(CUcontext* context, CUdevice device) = nullptr;
  CUresult (*current_context)(CUcontext* context) = nullptr;                    // as cuCtxGetCurrent
  CUresult (*context_id)(CUcontext context, unsigned long long* id) = nullptr;  // as cuCtxGetId
  CUresult (*stream_id)(CUcontext context, CUstream stream,
                        unsigned long long* id) = nullptr;  // as cuStreamGetId, of that context
  CUresult (*module_functions)(CUcontext context, CUmodule module, std::vector<ModuleFunction>* functions) = nullptr;
  CUresult (*load_module)(CUmodule* module, const void* image) = nullptr;         // as cuModuleLoadData
  CUresult (*self_test_devices)(std::vector<SelfTestDevice>* devices) = nullptr;  // every device, in order
  void (*report)(const char* line) = nullptr;                                     // one line for the user, once
};

// Implements cuGetExportTable. The tables are the same for the life of the process, so the host must be too (static
// storage) and must be the same in every call. CUDA_ERROR_INVALID_VALUE and *table = null for a table that is not
// offered.
CUresult get_export_table(const PrivateTableHost& host, const void** table, const CUuuid* id) noexcept;

// The storage behind CONTEXT_LOCAL_STORAGE; the host drops a context's values when it resets or destroys the context.
ContextLocalStorage& context_local_storage() noexcept;

}  // namespace gpuwire::cuda_abi
