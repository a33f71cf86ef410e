#include "test/server/software_device/driver/fixture.hpp"

using namespace gpuwire::software_device::test;

namespace {

constexpr size_t kPage = size_t{2} << 20;
constexpr CUdeviceptr kHint = 0x10'0000'0000;

CUmemAllocationProp on_device(int device) {
  CUmemAllocationProp out{};
  out.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  out.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  return out;
}

CUmemAccessDesc access(int device, CUmemAccess_flags flags) {
  return {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}, .flags = flags};
}

}  // namespace

TEST_CASE("Physical memory is mapped at the reserved address, and used once access is given") {
  const CurrentContext context;
  const auto properties = on_device(0);
  size_t granularity = 0;
  CHECK(cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS);
  CHECK(granularity == kPage);
  CUdeviceptr address = 0;
  REQUIRE(cuMemAddressReserve(&address, 4 * kPage, 0, kHint, 0) == CUDA_SUCCESS);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(address == kHint);
#endif
  CUmemGenericAllocationHandle first = 0, second = 0;
  REQUIRE(cuMemCreate(&first, kPage, &properties, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemCreate(&second, kPage, &properties, 0) == CUDA_SUCCESS);
  CHECK(cuMemMap(address, kPage, 0, first, 0) == CUDA_SUCCESS);
  CHECK(cuMemMap(address, kPage, 0, second, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemMap(address + kPage, kPage, 0, second, 0) == CUDA_SUCCESS);
  CHECK(cuMemMap(address + 4 * kPage, kPage, 0, second, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemRelease(second) == CUDA_SUCCESS);
  CHECK(cuMemsetD8(address, 1, 4) == CUDA_ERROR_INVALID_VALUE);
  const auto both = access(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CHECK(cuMemSetAccess(address, 2 * kPage, &both, 1) == CUDA_SUCCESS);
  unsigned long long flags = 0;
  CHECK(cuMemGetAccess(&flags, &both.location, address) == CUDA_SUCCESS);
  CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  // Across the seam of two mappings.
  CHECK(cuMemsetD32(address + kPage - 8, 5, 4) == CUDA_SUCCESS);
  CHECK(read(address + kPage - 8, 4) == std::vector<unsigned>{5, 5, 5, 5});
  CHECK(launch_add_one(function(load(), "add_one"), address + kPage) == CUDA_SUCCESS);
  CHECK(read(address + kPage, 1)[0] == 6);
  CHECK(cuMemUnmap(address, 2 * kPage) == CUDA_SUCCESS);
  CHECK(cuMemUnmap(address, 2 * kPage) == CUDA_SUCCESS);
  CHECK(cuMemsetD8(address, 1, 4) == CUDA_ERROR_INVALID_VALUE);
  // The contents outlive the mapping.
  CHECK(cuMemMap(address + 2 * kPage, kPage, 0, first, 0) == CUDA_SUCCESS);
  CHECK(cuMemSetAccess(address + 2 * kPage, kPage, &both, 1) == CUDA_SUCCESS);
  CHECK(read(address + 3 * kPage - 8, 2) == std::vector<unsigned>{5, 5});
  CHECK(cuMemAddressFree(address, 4 * kPage) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemUnmap(address, 4 * kPage) == CUDA_SUCCESS);
  CHECK(cuMemRelease(first) == CUDA_SUCCESS);
  CHECK(cuMemRelease(first) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAddressFree(address, 4 * kPage) == CUDA_SUCCESS);
}

TEST_CASE("Memory that may only be read faults a kernel that writes") {
  const CurrentContext context;
  const auto properties = on_device(0);
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  REQUIRE(cuMemAddressReserve(&address, kPage, 0, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemCreate(&handle, kPage, &properties, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemMap(address, kPage, 0, handle, 0) == CUDA_SUCCESS);
  const auto readable = access(0, CU_MEM_ACCESS_FLAGS_PROT_READ);
  REQUIRE(cuMemSetAccess(address, kPage, &readable, 1) == CUDA_SUCCESS);
  CHECK(launch_add_one(function(load(), "add_one"), address) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cuMemUnmap(address, kPage) == CUDA_SUCCESS);
  CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
  CHECK(cuMemAddressFree(address, kPage) == CUDA_SUCCESS);
}

TEST_CASE("A mapping without access has no device address, and no range, but it is device memory") {
  const CurrentContext context;
  const auto properties = on_device(0);
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  REQUIRE(cuMemAddressReserve(&address, kPage, 0, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemCreate(&handle, kPage, &properties, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemMap(address, kPage, 0, handle, 0) == CUDA_SUCCESS);
  auto set = [&](int device, CUmemAccess_flags flags) {
    const auto right = access(device, flags);
    REQUIRE(cuMemSetAccess(address, kPage, &right, 1) == CUDA_SUCCESS);
  };
  auto answers_are = [&](CUresult attribute, CUresult range, unsigned flags) {
    CUdeviceptr pointer = 1, base = 1;
    size_t bytes = 0;
    CHECK(cuPointerGetAttribute(&pointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address + 5) == attribute);
    CHECK(pointer == (attribute == CUDA_SUCCESS ? address + 5 : 0));
    CHECK(cuMemGetAddressRange(&base, &bytes, address + 5) == range);
    CHECK(bytes == (range == CUDA_SUCCESS ? kPage : 0));
    unsigned known_flags = 9, type = 9;
    CHECK(cuPointerGetAttribute(&known_flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, address) == CUDA_SUCCESS);
    CHECK(known_flags == flags);
    CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_SUCCESS);
    CHECK(type == CU_MEMORYTYPE_DEVICE);
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
    void* to[] = {&pointer};
    CHECK(cuPointerGetAttributes(1, which, to, address) == CUDA_SUCCESS);
    CHECK(pointer == (attribute == CUDA_SUCCESS ? address : 0));
  };
  answers_are(CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_FOUND, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
  set(0, CU_MEM_ACCESS_FLAGS_PROT_READ);
  answers_are(CUDA_SUCCESS, CUDA_SUCCESS, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ);
  set(1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  set(0, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  answers_are(CUDA_SUCCESS, CUDA_SUCCESS, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
  set(1, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  answers_are(CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_FOUND, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
  CHECK(cuMemUnmap(address, kPage) == CUDA_SUCCESS);
  CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
  CHECK(cuMemAddressFree(address, kPage) == CUDA_SUCCESS);
}

TEST_CASE("The range of a mapping is its reservation, as a pointer's attributes have it") {
  const CurrentContext context;
  const auto properties = on_device(0);
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  REQUIRE(cuMemAddressReserve(&address, 4 * kPage, 0, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemCreate(&handle, kPage, &properties, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemMap(address + 2 * kPage, kPage, 0, handle, 0) == CUDA_SUCCESS);
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                 CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, CU_POINTER_ATTRIBUTE_MAPPING_SIZE};
  CUdeviceptr start = 0, base = 0;
  size_t bytes = 0, mapped_bytes = 0;
  void* to[] = {&start, &bytes, &base, &mapped_bytes};
  CHECK(cuPointerGetAttributes(4, which, to, address + 2 * kPage + 5) == CUDA_SUCCESS);
  CHECK(start == address);
  CHECK(bytes == 4 * kPage);
  CHECK(base == address + 2 * kPage);
  CHECK(mapped_bytes == kPage);
  CHECK(cuMemUnmap(address, 4 * kPage) == CUDA_SUCCESS);
  CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
  CHECK(cuMemAddressFree(address, 4 * kPage) == CUDA_SUCCESS);
}

TEST_CASE("Physical memory counts, and is refused in units that no page has") {
  const CurrentContext context;
  auto properties = on_device(0);
  CUmemGenericAllocationHandle handle = 0;
  CHECK(cuMemCreate(&handle, kPage + 1, &properties, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemCreate(&handle, 2 * kMemoryBytes, &properties, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  CHECK(cuMemCreate(&handle, kPage, &properties, 0) == CUDA_ERROR_NOT_SUPPORTED);
  properties = on_device(9);
  CHECK(cuMemCreate(&handle, kPage, &properties, 0) == CUDA_ERROR_INVALID_DEVICE);
  CUdeviceptr address = 0;
  CHECK(cuMemAddressReserve(&address, 123, 0, 0, 0) == CUDA_ERROR_INVALID_VALUE);
}
