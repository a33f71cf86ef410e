#include "test/server/software_device/driver/fixture.hpp"

using namespace gpuwire::software_device::test;

TEST_CASE("Stream-ordered memory is usable at once and freed in the stream's order") {
  const CurrentContext context;
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
  size_t before = 0, after = 0, total = 0;
  REQUIRE(cuMemGetInfo(&before, &total) == CUDA_SUCCESS);
  CUdeviceptr address = 0;
  REQUIRE(cuMemAllocAsync(&address, 1 << 20, stream) == CUDA_SUCCESS);
  CHECK(cuMemsetD8Async(address, 1, 1 << 20, stream) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(address, stream) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  REQUIRE(cuMemGetInfo(&after, &total) == CUDA_SUCCESS);
  CHECK(after == before);
  CHECK(cuMemFreeAsync(address, stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAllocAsync(&address, 2 * kMemoryBytes, stream) == CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("A pool has settings, a limit and counts what is in use") {
  const CurrentContext context;
  const CUmemPoolProps properties{.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                                  .maxSize = 1 << 20};
  CUmemoryPool pool = nullptr;
  REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
  CUdeviceptr address = 0, more = 0;
  CHECK(cuMemAllocFromPoolAsync(&address, 1 << 19, pool, nullptr) == CUDA_SUCCESS);
  CHECK(cuMemAllocFromPoolAsync(&more, 1 << 20, pool, nullptr) == CUDA_ERROR_OUT_OF_MEMORY);
  cuuint64_t used = 0, threshold = 12345;
  CHECK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) == CUDA_SUCCESS);
  CHECK(used == 1 << 19);
  CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) == CUDA_SUCCESS);
  threshold = 0;
  CHECK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) == CUDA_SUCCESS);
  CHECK(threshold == 12345);
  CUmemoryPool owner = nullptr;
  CHECK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) == CUDA_SUCCESS);
  CHECK(owner == pool);
  CHECK(cuMemFree(address) == CUDA_SUCCESS);
  CHECK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) == CUDA_SUCCESS);
  CHECK(used == 0);
  CHECK(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
  CHECK(cuMemPoolDestroy(pool) == CUDA_ERROR_INVALID_VALUE);
  CUmemoryPool standard = nullptr, current = nullptr;
  CHECK(cuDeviceGetDefaultMemPool(&standard, 0) == CUDA_SUCCESS);
  CHECK(cuDeviceGetMemPool(&current, 0) == CUDA_SUCCESS);
  CHECK(standard == current);
  CHECK(cuMemPoolDestroy(standard) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("Freed memory is not used any more at once, and is the pool's until the stream gets there") {
  const CurrentContext context;
  const CUmemPoolProps properties{.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
  CUmemoryPool pool = nullptr;
  REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
  CUstream stream = nullptr, other = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  const auto attribute = [&](CUmemPool_attribute which) {
    cuuint64_t value = 0;
    REQUIRE(cuMemPoolGetAttribute(pool, which, &value) == CUDA_SUCCESS);
    return value;
  };
  const CUdeviceptr flag = allocate(4);
  write(flag, {0});
  CUdeviceptr address = 0;
  REQUIRE(cuMemAllocFromPoolAsync(&address, 1 << 16, pool, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitValue32(stream, flag, 1, CU_STREAM_WAIT_VALUE_EQ) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(address, stream) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(address, stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
  CHECK(attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 1 << 16);
  REQUIRE(cuStreamWriteValue32(other, flag, 1, 0) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
  CHECK(attribute(CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 1 << 16);
  cuuint64_t none = 0;
  CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &none) == CUDA_SUCCESS);
  CHECK(attribute(CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 0);
  CHECK(attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 1 << 16);
  CHECK(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
}
