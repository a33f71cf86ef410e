// Older names of functions of which only the name has changed.
#define __CUDA_API_VERSION_INTERNAL  // the header declares each function under its own name
#include <cuda.h>

extern "C" {

CUresult cuCtxCreate(CUcontext* out, unsigned int flags, CUdevice device) { return cuCtxCreate_v2(out, flags, device); }

CUresult cuLinkCreate(unsigned int count, CUjit_option* options, void** values, CUlinkState* out) {
  return cuLinkCreate_v2(count, options, values, out);
}

CUresult cuLinkAddData(CUlinkState state, CUjitInputType type, void* data, size_t bytes, const char* name,
                       unsigned int count, CUjit_option* options, void** values) {
  return cuLinkAddData_v2(state, type, data, bytes, name, count, options, values);
}

CUresult cuLinkAddFile(CUlinkState state, CUjitInputType type, const char* path, unsigned int count,
                       CUjit_option* options, void** values) {
  return cuLinkAddFile_v2(state, type, path, count, options, values);
}

}  // extern "C"
