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
