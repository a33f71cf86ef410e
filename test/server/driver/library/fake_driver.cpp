// A CUDA driver for tests, whose cuInit answers GPUWIRE_FAKE_INIT. It offers what the software device does beside, too.
#include <cuda.h>

namespace {
int made_strict = 0;  // how often
}

extern "C" {
CUresult cuInit(unsigned) { return CUresult(GPUWIRE_FAKE_INIT); }
CUresult cuDriverGetVersion(int* version) { return *version = 13000, CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int* count) { return *count = 1, CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) { return *context = nullptr, CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
void gpuwire_software_set_strict(int on) { made_strict += on; }
int fake_driver_made_strict() { return made_strict; }
CUresult cuGetErrorName(CUresult, const char** name) { return *name = "CUDA_ERROR_OF_A_TEST", CUDA_SUCCESS; }
}
