// Calls that a capture forbids, to its own thread and to others, and the end of an invalid capture, as measured on
// driver 580.
#include <cuda.h>
#include <cudaProfiler.h>

#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "../driver_check.hpp"

namespace {

constexpr size_t kBytes = 4096;
constexpr char kText[] = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry nothing() { ret; }\n";

CUcontext g_context;
CUstream g_stream;
CUdeviceptr g_memory;
alignas(4096) char g_registered[2 * kBytes], g_plain[2 * kBytes];

struct Call {
  const char* name;
  std::function<CUresult()> make;
};

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
CUresult launch_grid_of_null(CUstream stream) { return cuLaunchGridAsync(nullptr, 1, 1, stream); }
#pragma GCC diagnostic pop

std::vector<Call> forbidden() {
  static CUarray array;
  static CUtexObject texture;
  static void* pinned;
  static CUlibrary library;
  static CUmemoryPool pool;
  static CUdeviceptr in_order;
  static CUstream other = nullptr;
  static CUDA_ARRAY_DESCRIPTOR shape{};
  static CUDA_RESOURCE_DESC resource{};
  static CUDA_TEXTURE_DESC how{};
  static CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, 0};
  shape.Width = 16;
  shape.Height = 16;
  shape.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  shape.NumChannels = 1;
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  OK(cuArrayCreate(&array, &shape));
  resource.resType = CU_RESOURCE_TYPE_ARRAY;
  resource.res.array.hArray = array;
  OK(cuTexObjectCreate(&texture, &resource, &how, nullptr));
  OK(cuMemHostAlloc(&pinned, kBytes, 0));
  OK(cuMemHostRegister(g_registered, kBytes, 0));
  OK(cuLibraryLoadData(&library, kText, nullptr, nullptr, 0, nullptr, nullptr, 0));
  OK(cuDeviceGetDefaultMemPool(&pool, 0));
  OK(cuMemAllocAsync(&in_order, kBytes, other));
  OK(cuStreamSynchronize(other));
  return {
      {"cuMemAlloc",
       [] {
         CUdeviceptr made;
         return cuMemAlloc(&made, 64);
       }},
      {"cuMemFree", [] { return cuMemFree(g_memory); }},
      {"cuMemFree of NULL", [] { return cuMemFree(0); }},
      {"cuMemFreeAsync in another stream", [] { return cuMemFreeAsync(in_order, other); }},
      {"cuMemFreeAsync of NULL in another stream", [] { return cuMemFreeAsync(0, other); }},
      {"cuMemFreeHost", [] { return cuMemFreeHost(pinned); }},
      {"cuMemFreeHost of NULL", [] { return cuMemFreeHost(nullptr); }},
      {"cuMemHostRegister", [] { return cuMemHostRegister(g_plain, kBytes, 0); }},
      {"cuMemHostRegister of what is registered", [] { return cuMemHostRegister(g_registered, kBytes, 0); }},
      {"cuMemHostUnregister", [] { return cuMemHostUnregister(g_registered); }},
      {"cuMemHostUnregister of what is not registered", [] { return cuMemHostUnregister(g_plain); }},
      {"cuArrayCreate",
       [] {
         CUarray made;
         return cuArrayCreate(&made, &shape);
       }},
      {"cuArrayDestroy", [] { return cuArrayDestroy(array); }},
      {"cuTexObjectCreate",
       [] {
         CUtexObject made;
         return cuTexObjectCreate(&made, &resource, &how, nullptr);
       }},
      {"cuTexObjectDestroy", [] { return cuTexObjectDestroy(texture); }},
      {"cuLibraryUnload", [] { return cuLibraryUnload(library); }},
      {"cuCtxSetLimit", [] { return cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 1 << 20); }},
      {"cuCtxSetCacheConfig", [] { return cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1); }},
      {"cuMemPoolGetAccess",
       [] {
         CUmemAccess_flags flags;
         return cuMemPoolGetAccess(&flags, pool, &here);
       }},
      {"cuProfilerStart", [] { return cuProfilerStart(); }},
      {"cuProfilerStop", [] { return cuProfilerStop(); }},
      {"cuCtxDisablePeerAccess", [] { return cuCtxDisablePeerAccess(g_context); }},
      {"cuLaunchGridAsync of NULL", [] { return launch_grid_of_null(other); }},
  };
}

CUstreamCaptureStatus status() {
  CUstreamCaptureStatus status;
  OK(cuStreamIsCapturing(g_stream, &status));
  return status;
}
void begin() { OK(cuStreamBeginCapture(g_stream, CU_STREAM_CAPTURE_MODE_GLOBAL)); }

// Ends the capture, which must be invalid.
void end_invalid() {
  CUgraph graph = nullptr;
  DEMAND(status() == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  FAILS(cuStreamEndCapture(g_stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  DEMAND(graph == nullptr && status() == CU_STREAM_CAPTURE_STATUS_NONE);
}
void make_invalid() {
  CUdeviceptr made;
  begin();
  FAILS(cuMemAlloc(&made, 64), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

bool refused(const Call& call, const char* whose) {
  CUresult result = call.make();
  if (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) return true;
  std::printf("%s beside a capture of %s: %s\n", call.name, whose, error_name(result));
  return false;
}

bool check_forbidden() {
  bool right = true;
  for (const Call& call : forbidden()) {
    begin();
    right = refused(call, "its own thread") && right;
    end_invalid();
    begin();
    std::thread([&] {
      OK(cuCtxSetCurrent(g_context));
      right = refused(call, "another thread") && right;
    }).join();
    end_invalid();
  }
  return right;
}

// Some calls check handles before captures; NULL for an array in a structure is valid.
void check_no_arrays() {
  CUDA_MEMCPY2D rows{};
  CUDA_RESOURCE_DESC resource{};
  CUDA_TEXTURE_DESC how{};
  CUtexObject texture;
  rows.srcMemoryType = CU_MEMORYTYPE_HOST;
  rows.srcHost = g_plain;
  rows.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  rows.WidthInBytes = rows.srcPitch = 16;
  rows.Height = 2;
  resource.resType = CU_RESOURCE_TYPE_ARRAY;
  FAILS(cuMemcpy2D(&rows), CUDA_ERROR_INVALID_VALUE);
  FAILS(cuTexObjectCreate(&texture, &resource, &how, nullptr), CUDA_ERROR_INVALID_VALUE);
  begin();
  FAILS(cuArrayDestroy(nullptr), CUDA_ERROR_INVALID_HANDLE);
  FAILS(cuMipmappedArrayDestroy(nullptr), CUDA_ERROR_INVALID_HANDLE);
  FAILS(cuCtxDisablePeerAccess(nullptr), CUDA_ERROR_INVALID_CONTEXT);
  DEMAND(status() == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CUgraph graph = nullptr;
  OK(cuStreamEndCapture(g_stream, &graph));
  OK(cuGraphDestroy(graph));
}

// Blocking copies are allowed while a non-blocking stream captures; with a blocking stream, a copy would make the NULL
// stream wait for captured work.
void check_copies() {
  static void* pinned;
  CUstream blocking;
  CUgraph graph = nullptr;
  OK(cuMemHostAlloc(&pinned, kBytes, 0));
  for (const CUstreamCaptureMode mode :
       {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    OK(cuStreamBeginCapture(g_stream, mode));
    std::memset(g_plain, 7, 64);
    OK(cuMemcpyHtoD(g_memory, g_plain, 64));
    OK(cuMemcpyDtoH(pinned, g_memory, 64));
    DEMAND(std::memcmp(pinned, g_plain, 64) == 0);
    std::memset(pinned, 8, 64);
    OK(cuMemcpyHtoD(g_memory, pinned, 64));
    OK(cuMemcpy(reinterpret_cast<CUdeviceptr>(g_plain), g_memory, 64));
    DEMAND(g_plain[63] == 8);
    CUDA_MEMCPY2D rows{};
    rows.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    rows.srcDevice = g_memory;
    rows.srcPitch = 32;
    rows.dstMemoryType = CU_MEMORYTYPE_HOST;
    rows.dstHost = g_plain + kBytes;
    rows.dstPitch = 16;
    rows.WidthInBytes = 16;
    rows.Height = 2;
    OK(cuMemcpy2D(&rows));
    DEMAND(std::memcmp(g_plain, g_plain + kBytes, 32) == 0);
    DEMAND(status() == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cuStreamEndCapture(g_stream, &graph));
    OK(cuGraphDestroy(graph));
  }
  OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  OK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  FAILS(cuMemcpyHtoD(g_memory, g_plain, 64), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  FAILS(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  OK(cuStreamDestroy(blocking));
  CUdeviceptr made;
  make_invalid();
  OK(cuMemcpyHtoD(g_memory, g_plain, 64));
  OK(cuMemcpyDtoH(g_plain, g_memory, 64));
  FAILS(cuMemAlloc(&made, 64), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  end_invalid();
}

// Not only the origin of a capture counts, but each of its streams that the NULL stream would wait for.
void check_joined() {
  CUstream blocking;
  CUevent event;
  OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuStreamBeginCapture(g_stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuMemsetD8(g_memory, 1, 64));
  OK(cuEventRecord(event, g_stream));
  OK(cuStreamWaitEvent(blocking, event, 0));
  FAILS(cuMemsetD8(g_memory, 2, 64), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  end_invalid();
  OK(cuMemsetD8(g_memory, 3, 64));
  OK(cuStreamSynchronize(nullptr));
  OK(cuEventDestroy(event));
  OK(cuStreamDestroy(blocking));
}

void check_ends() {
  CUgraph graph = nullptr;
  FAILS(cuStreamEndCapture(g_stream, nullptr), CUDA_ERROR_ILLEGAL_STATE);
  FAILS(cuStreamEndCapture(g_stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
  // An invalid capture returns no graph, so the output may be NULL.
  make_invalid();
  DEMAND(cuStreamEndCapture(g_stream, nullptr) != CUDA_SUCCESS);
  DEMAND(status() == CU_STREAM_CAPTURE_STATUS_NONE);
  FAILS(cuStreamEndCapture(g_stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
  // Of a valid capture the output may be NULL, too.
  begin();
  OK(cuStreamEndCapture(g_stream, nullptr));
  FAILS(cuStreamEndCapture(g_stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
}

// A wait for an event without a record returns at once; an event that a capture recorded cannot be queried.
void check_events() {
  CUevent event, never;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuEventCreate(&never, CU_EVENT_DISABLE_TIMING));
  begin();
  OK(cuStreamWaitEvent(g_stream, never, 0));
  DEMAND(status() == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  OK(cuEventRecord(event, g_stream));
  FAILS(cuEventSynchronize(event), CUDA_ERROR_CAPTURED_EVENT);
  FAILS(cuEventSynchronize(event), CUDA_ERROR_INVALID_VALUE);  // the capture is invalid now
  end_invalid();
  OK(cuEventDestroy(event));
  OK(cuEventDestroy(never));
}

// Work in a stream of another context than the current one.
void check_other_context() {
  CUcontext other;
  make_invalid();
  OK(cuCtxCreate(&other, nullptr, 0, 0));
  FAILS(cuMemsetD8Async(g_memory, 0, 64, g_stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  OK(cuCtxDestroy(other));
  OK(cuCtxSetCurrent(g_context));
  end_invalid();
}

void check_orders() {
  CUmemoryPool pool;
  CUmemAccess_flags flags;
  CUmemLocation nowhere{CU_MEM_LOCATION_TYPE_DEVICE, 99};
  size_t offset, bytes;
  OK(cuDeviceGetDefaultMemPool(&pool, 0));
  FAILS(cuMemPoolGetAccess(&flags, pool, &nowhere), CUDA_ERROR_INVALID_VALUE);
  FAILS(cuKernelGetParamInfo(nullptr, 0, &offset, &bytes), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace

int main() {
  retain_primary();
  OK(cuCtxGetCurrent(&g_context));
  OK(cuStreamCreate(&g_stream, CU_STREAM_NON_BLOCKING));
  OK(cuMemAlloc(&g_memory, kBytes));
  bool right = check_forbidden();
  check_copies();
  check_joined();
  check_no_arrays();
  check_ends();
  check_events();
  check_other_context();
  check_orders();
  std::printf("%s\n", right ? "PASSED" : "FAILED");
  return right ? 0 : 1;
}
