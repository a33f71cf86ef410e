// A driver for tests of the server's processes: devices, contexts and the process's own memory, no kernels. It is built
// as a library of its own and opened by name, like a real one.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <poll.h>
#include <unistd.h>

#include "cuda_names.hpp"

#define MOCK extern "C" __attribute__((visibility("default"))) CUresult CUDAAPI

// Runs an order to a compromised worker (test/hostile/worker_orders.cpp); null in the plain mock. Returns true if
// `bytes` was an order, with its result in `answer`.
extern "C" __attribute__((weak)) bool obey_order(size_t bytes, CUdeviceptr* answer);

namespace {

// Arguments that make the mock misbehave.
constexpr size_t kAllocationThatHangs = 0xdead'0001;  // never returns, like a driver behind a kernel without end
constexpr size_t kAllocationThatCrashes = 0xdead'0002;
constexpr size_t kAllocationThatPrints = 0xdead'0003;  // prints, like device printf, and allocates nothing
constexpr size_t kAllocationMax = size_t{1} << 30;
// Room for the sizes above: a quota's refusal does not reach the driver.
constexpr size_t kDeviceBytes = size_t{8} << 30;

thread_local CUcontext t_current = nullptr;
char g_contexts[2];

CUcontext primary(CUdevice device) { return reinterpret_cast<CUcontext>(&g_contexts[device]); }

}  // namespace

MOCK cuInit(unsigned) { return std::getenv("GPUWIRE_MOCK_NO_DEVICE") ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS; }
MOCK cuDriverGetVersion(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}
MOCK cuDeviceGetCount(int* count) {
  *count = 2;
  return CUDA_SUCCESS;
}
MOCK cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
MOCK cuDeviceGetName(char* name, int bytes, CUdevice device) {
  std::snprintf(name, size_t(bytes), "mock device %d", device);
  return CUDA_SUCCESS;
}
MOCK cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  if (attribute == CU_DEVICE_ATTRIBUTE_WARP_SIZE) {
    *value = 32;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}
MOCK cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  *bytes = kDeviceBytes;
  return CUDA_SUCCESS;
}
MOCK cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  const char* context = std::getenv("GPUWIRE_MOCK_CONTEXT_BYTES");
  *total = kDeviceBytes;
  *free_bytes = kDeviceBytes - (context ? size_t(std::atoll(context)) : 0);
  return CUDA_SUCCESS;
}
MOCK cuGetErrorName(CUresult result, const char** name) {
  *name = result == CUDA_ERROR_NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_OTHER";
  return CUDA_SUCCESS;
}
MOCK cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = primary(device);
  return CUDA_SUCCESS;
}
MOCK cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
MOCK cuDevicePrimaryCtxReset_v2(CUdevice) { return CUDA_SUCCESS; }
MOCK cuDevicePrimaryCtxSetFlags_v2(CUdevice, unsigned) { return CUDA_SUCCESS; }
MOCK cuCtxSetCurrent(CUcontext context) {
  t_current = context;
  return CUDA_SUCCESS;
}
MOCK cuCtxGetCurrent(CUcontext* context) {
  *context = t_current;
  return CUDA_SUCCESS;
}
MOCK cuCtxGetDevice(CUdevice* device) {
  if (!t_current) return CUDA_ERROR_INVALID_CONTEXT;
  *device = t_current == primary(1);
  return CUDA_SUCCESS;
}
MOCK cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
MOCK cuCtxSynchronize() { return CUDA_SUCCESS; }
MOCK cuCtxGetLimit(size_t* value, CUlimit limit) {
  *value = 1024 * (1 + limit);
  return CUDA_SUCCESS;
}
MOCK cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return CUDA_SUCCESS;
}
MOCK cuStreamCreate(CUstream* stream, unsigned) {
  *stream = reinterpret_cast<CUstream>(new char);
  return CUDA_SUCCESS;
}
MOCK cuStreamDestroy_v2(CUstream stream) {
  delete reinterpret_cast<char*>(stream);
  return CUDA_SUCCESS;
}
MOCK cuStreamQuery(CUstream) { return CUDA_SUCCESS; }
MOCK cuStreamSynchronize(CUstream) { return CUDA_SUCCESS; }
MOCK cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
MOCK cuEventCreate(CUevent* event, unsigned) {
  *event = reinterpret_cast<CUevent>(new char);
  return CUDA_SUCCESS;
}
MOCK cuEventDestroy_v2(CUevent event) {
  delete reinterpret_cast<char*>(event);
  return CUDA_SUCCESS;
}
MOCK cuEventRecord(CUevent, CUstream) { return CUDA_SUCCESS; }
MOCK cuEventQuery(CUevent) { return CUDA_SUCCESS; }
MOCK cuEventSynchronize(CUevent) { return CUDA_SUCCESS; }

MOCK cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  if (!t_current) return CUDA_ERROR_INVALID_CONTEXT;
  if (bytes == kAllocationThatHangs) {
    for (;;) ::poll(nullptr, 0, -1);  // not pause(), for which the confinement kills a worker
  }
  if (bytes == kAllocationThatCrashes) std::abort();  // unlike SIGSEGV, sanitizers leave it alone
  if (bytes == kAllocationThatPrints) {
    std::printf("hello from the device\n");
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (obey_order && obey_order(bytes, address)) return CUDA_SUCCESS;
  if (bytes == 0 || bytes > kAllocationMax) return bytes ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
  *address = reinterpret_cast<CUdeviceptr>(std::calloc(bytes, 1));
  return CUDA_SUCCESS;
}
MOCK cuMemFree_v2(CUdeviceptr address) {
  std::free(reinterpret_cast<void*>(address));
  return CUDA_SUCCESS;
}
MOCK cuMemHostAlloc(void** address, size_t bytes, unsigned) {
  *address = std::calloc(bytes, 1);
  return CUDA_SUCCESS;
}
MOCK cuMemFreeHost(void* address) {
  std::free(address);
  return CUDA_SUCCESS;
}
MOCK cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream) {
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return CUDA_SUCCESS;
}
MOCK cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream) {
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return CUDA_SUCCESS;
}
MOCK cuMemHostRegister_v2(void*, size_t, unsigned) { return CUDA_SUCCESS; }
MOCK cuMemHostUnregister(void*) { return CUDA_SUCCESS; }
