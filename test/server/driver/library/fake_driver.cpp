// A CUDA driver for tests, whose cuInit answers GPUWIRE_FAKE_INIT.
#include <cuda.h>

extern "C" {
CUresult cuInit(unsigned) { return CUresult(GPUWIRE_FAKE_INIT); }
CUresult cuDriverGetVersion(int* version) { return *version = 13000, CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int* count) { return *count = 1, CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) { return *context = nullptr, CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult, const char** name) { return *name = "CUDA_ERROR_OF_A_TEST", CUDA_SUCCESS; }
}
