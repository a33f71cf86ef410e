#include <thread>

#include "test/server/software_device/driver/fixture.hpp"

using namespace gpuwire::software_device::test;

namespace {

CUcontext current() {
  CUcontext out = nullptr;
  REQUIRE(cuCtxGetCurrent(&out) == CUDA_SUCCESS);
  return out;
}

}  // namespace

TEST_CASE("Without a context calls say so, and the current context is null") {
  CHECK(current() == nullptr);
  CUdeviceptr address = 0;
  CHECK(cuMemAlloc(&address, 4) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuCtxPopCurrent(nullptr) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("Contexts form a stack of the calling thread") {
  CurrentContext first, second(1);
  CHECK(current() == second.handle);
  CUdevice device = -1;
  CHECK(cuCtxGetDevice(&device) == CUDA_SUCCESS);
  CHECK(device == 1);
  CUcontext popped = nullptr;
  CHECK(cuCtxPopCurrent(&popped) == CUDA_SUCCESS);
  CHECK(popped == second.handle);
  CHECK(current() == first.handle);
  CHECK(cuCtxPushCurrent(second.handle) == CUDA_SUCCESS);
  CHECK(cuCtxSetCurrent(first.handle) == CUDA_SUCCESS);
  CHECK(cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  CHECK(current() == first.handle);
  CHECK(cuCtxPushCurrent(second.handle) == CUDA_SUCCESS);
  std::thread([] { CHECK(current() == nullptr); }).join();
}

TEST_CASE("A destroyed context may still stand in a stack, where calls say that it is destroyed") {
  CUcontext context = nullptr;
  REQUIRE(cuCtxCreate(&context, nullptr, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxPushCurrent(context) == CUDA_SUCCESS);
  REQUIRE(cuCtxDestroy(context) == CUDA_SUCCESS);
  CHECK(current() == context);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuCtxDestroy(context) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  CHECK(current() == nullptr);
  CHECK(cuCtxSetCurrent(reinterpret_cast<CUcontext>(0x1234)) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("A primary context has one handle, is active while it is retained, and may be current before") {
  unsigned flags = 9;
  int active = 9;
  CHECK(cuDevicePrimaryCtxGetState(1, &flags, &active) == CUDA_SUCCESS);
  CHECK(active == 0);
  CUcontext first = nullptr, second = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&first, 1) == CUDA_SUCCESS);
  REQUIRE(cuDevicePrimaryCtxRetain(&second, 1) == CUDA_SUCCESS);
  CHECK(first == second);
  REQUIRE(cuCtxPushCurrent(first) == CUDA_SUCCESS);
  const CUdeviceptr address = allocate(4096);
  CHECK(cuDevicePrimaryCtxRelease(1) == CUDA_SUCCESS);
  CHECK(cuMemsetD8(address, 1, 4096) == CUDA_SUCCESS);
  CHECK(cuDevicePrimaryCtxRelease(1) == CUDA_SUCCESS);
  CHECK(cuDevicePrimaryCtxRelease(1) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuMemsetD8(address, 1, 4096) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CUdevice device = -1;
  CHECK(cuCtxGetDevice(&device) == CUDA_SUCCESS);
  CHECK(device == 1);
  REQUIRE(cuDevicePrimaryCtxRetain(&second, 1) == CUDA_SUCCESS);
  CHECK(second == first);
  CHECK(cuMemsetD8(address, 1, 4096) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuDevicePrimaryCtxReset(1) == CUDA_SUCCESS);
  CHECK(cuDevicePrimaryCtxGetState(1, &flags, &active) == CUDA_SUCCESS);
  CHECK(active == 0);
  CHECK(cuCtxPopCurrent(nullptr) == CUDA_SUCCESS);
}

TEST_CASE("Settings are kept, and limits that the device does not have are named as such") {
  const CurrentContext context;
  size_t value = 0;
  CHECK(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE) == CUDA_SUCCESS);
  CHECK(value == 1024);
  CHECK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096) == CUDA_SUCCESS);
  CHECK(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE) == CUDA_SUCCESS);
  CHECK(value == 4096);
  CHECK(cuCtxGetLimit(&value, CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH) == CUDA_ERROR_UNSUPPORTED_LIMIT);
  CHECK(cuCtxGetLimit(&value, static_cast<CUlimit>(99)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1) == CUDA_SUCCESS);
  CUfunc_cache config = CU_FUNC_CACHE_PREFER_NONE;
  CHECK(cuCtxGetCacheConfig(&config) == CUDA_SUCCESS);
  CHECK(config == CU_FUNC_CACHE_PREFER_L1);
  unsigned version = 0;
  CHECK(cuCtxGetApiVersion(context.handle, &version) == CUDA_SUCCESS);
  CHECK(version == 3020);
  unsigned long long id = 0, other_id = 0;
  CHECK(cuCtxGetId(context.handle, &id) == CUDA_SUCCESS);
  const CurrentContext other;
  CHECK(cuCtxGetId(nullptr, &other_id) == CUDA_SUCCESS);
  CHECK(id != other_id);
}

TEST_CASE("Destroying a context gives its memory back") {
  size_t before = 0, after = 0, total = 0;
  const CurrentContext watcher;
  REQUIRE(cuMemGetInfo(&before, &total) == CUDA_SUCCESS);
  {
    const CurrentContext context;
    allocate(size_t{64} << 20);
    load();
    REQUIRE(cuMemGetInfo(&after, &total) == CUDA_SUCCESS);
    CHECK(after < before);
  }
  REQUIRE(cuMemGetInfo(&after, &total) == CUDA_SUCCESS);
  CHECK(after == before);
}

// Measured on driver 580, as the end-to-end program edges.
TEST_CASE("Without a current context a call is made in that of its function, module, stream or address") {
  CUmodule module = nullptr, found = nullptr;
  CUfunction add_one = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr memory = 0, base = 0, ordered = 0;
  size_t bytes = 0;
  unsigned count = 0;
  int threads = 0;
  const CurrentContext context(1);
  module = load();
  memory = allocate(4096);
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);

  CHECK(cuModuleGetFunction(&add_one, module, "add_one") == CUDA_SUCCESS);
  CHECK(cuModuleGetFunctionCount(&count, module) == CUDA_SUCCESS);
  CHECK(count > 1);
  CHECK(cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, add_one) == CUDA_SUCCESS);
  CHECK(threads > 0);
  CHECK(cuFuncGetModule(&found, add_one) == CUDA_SUCCESS);
  CHECK(found == module);
  CHECK(cuMemGetAddressRange(&base, &bytes, memory + 3) == CUDA_SUCCESS);
  CHECK(base == memory);
  CHECK(bytes == 4096);
  CHECK(cuMemAllocAsync(&ordered, 4096, stream) == CUDA_SUCCESS);
  int device = -1;
  CHECK(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ordered) == CUDA_SUCCESS);
  CHECK(device == 1);
  CHECK(cuMemGetAddressRange(&base, &bytes, ordered) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuMemFreeAsync(ordered, stream) == CUDA_SUCCESS);
  CHECK(cuMemAllocAsync(&ordered, 4096, nullptr) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuMemAllocAsync(&ordered, 4096, CU_STREAM_PER_THREAD) == CUDA_ERROR_INVALID_CONTEXT);

  // These mistakes come before the missing context.
  CUmemoryPool pool = nullptr;
  REQUIRE(cuDeviceGetDefaultMemPool(&pool, 1) == CUDA_SUCCESS);
  CHECK(cuMemAllocFromPoolAsync(nullptr, 4, pool, stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAllocFromPoolAsync(&ordered, 4, nullptr, stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAllocFromPoolAsync(&ordered, 4, pool, stream) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuModuleGetGlobal(&base, &bytes, module, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuModuleGetGlobal(nullptr, nullptr, module, "counter") == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuModuleGetGlobal(&base, &bytes, module, "counter") == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuMemPrefetchAsync(memory, 4, CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, 1}, 0, stream) ==
        CUDA_ERROR_INVALID_VALUE);
  CUlaunchConfig config{};
  CHECK(cuLaunchKernelEx(&config, nullptr, nullptr, nullptr) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuLaunchKernelEx(&config, add_one, nullptr, nullptr) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuModuleUnload(module) == CUDA_ERROR_INVALID_CONTEXT);

  // Calls about a stream or an event need no current context.
  CUevent event = nullptr;
  REQUIRE(cuCtxPushCurrent(context.handle) == CUDA_SUCCESS);
  REQUIRE(cuEventCreate(&event, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  CHECK(cuEventRecord(event, stream) == CUDA_SUCCESS);
  CHECK(cuStreamWaitEvent(stream, event, 0) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(nullptr) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuMemsetD8Async(memory, 1, 4, stream) == CUDA_ERROR_INVALID_CONTEXT);
  REQUIRE(cuCtxPushCurrent(context.handle) == CUDA_SUCCESS);
}
