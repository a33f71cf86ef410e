#include "test/server/software_device/driver/fixture.hpp"

using namespace gpuwire::software_device::test;

namespace {

template <typename T>
std::pair<CUresult, T> attribute(CUpointer_attribute which, CUdeviceptr address) {
  T value{};
  const CUresult result = cuPointerGetAttribute(&value, which, address);
  return {result, value};
}

}  // namespace

TEST_CASE("A device pointer tells whose and what it is") {
  const CurrentContext context(1);
  const CUdeviceptr address = allocate(100), other = allocate(100);
  CHECK(attribute<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, address + 5) == std::pair(CUDA_SUCCESS, context.handle));
  CHECK(attribute<CUmemorytype>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) ==
        std::pair(CUDA_SUCCESS, CU_MEMORYTYPE_DEVICE));
  CHECK(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address + 5) ==
        std::pair(CUDA_SUCCESS, address + 5));
  CHECK(attribute<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) == std::pair(CUDA_SUCCESS, 1));
  CHECK(attribute<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address + 99) ==
        std::pair(CUDA_SUCCESS, address));
  CHECK(attribute<size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, address) == std::pair(CUDA_SUCCESS, size_t{100}));
  CHECK(attribute<unsigned>(CU_POINTER_ATTRIBUTE_IS_MANAGED, address) == std::pair(CUDA_SUCCESS, 0u));
  CHECK(attribute<void*>(CU_POINTER_ATTRIBUTE_HOST_POINTER, address).first == CUDA_ERROR_INVALID_VALUE);
  CHECK(attribute<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, address) !=
        attribute<unsigned long long>(CU_POINTER_ATTRIBUTE_BUFFER_ID, other));
  CHECK(attribute<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, address + 100).first == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("Asked for several attributes at once, an unknown pointer is nothing but itself") {
  const CurrentContext context;
  int own = 0;
  CUcontext owner = context.handle;
  CUmemorytype type = CU_MEMORYTYPE_ARRAY;
  CUdeviceptr device = 1;
  void* host = nullptr;
  int ordinal = 5;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_HOST_POINTER,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* values[] = {&owner, &type, &device, &host, &ordinal};
  CHECK(cuPointerGetAttributes(5, attributes, values, reinterpret_cast<CUdeviceptr>(&own)) == CUDA_SUCCESS);
  CHECK(owner == nullptr);
  CHECK(static_cast<int>(type) == 0);
  CHECK(device == 0);
  CHECK(host == &own);
  CHECK(ordinal == -2);
}

TEST_CASE("A flag is a whole word, as cudart reads it") {
  const CurrentContext context;
  CUdeviceptr managed = 0;
  REQUIRE(cuMemAllocManaged(&managed, 64, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
  unsigned flag = ~0u;
  CHECK(cuPointerGetAttribute(&flag, CU_POINTER_ATTRIBUTE_IS_MANAGED, managed) == CUDA_SUCCESS);
  CHECK(flag == 1);
  flag = ~0u;
  CHECK(cuPointerGetAttribute(&flag, CU_POINTER_ATTRIBUTE_IS_MANAGED, allocate(4)) == CUDA_SUCCESS);
  CHECK(flag == 0);
}
