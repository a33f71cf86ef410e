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
  CHECK(attribute<void*>(CU_POINTER_ATTRIBUTE_HOST_POINTER, address) ==
        std::pair(CUDA_ERROR_INVALID_VALUE, static_cast<void*>(nullptr)));
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

namespace {

constexpr uint64_t kUntouched = 0xabababab;

struct Asked {
  CUresult single, several;
  uint64_t single_value, several_value;
  bool operator==(const Asked&) const = default;
};

Asked ask(CUpointer_attribute which, CUdeviceptr address) {
  uint64_t one[2] = {kUntouched, 0}, all[2] = {kUntouched, 0};
  void* values = all;
  const CUresult single = cuPointerGetAttribute(one, which, address);
  return {single, cuPointerGetAttributes(1, &which, &values, address), one[0], all[0]};
}

// Both forms give it.
Asked both(uint64_t value) { return {CUDA_SUCCESS, CUDA_SUCCESS, value, value}; }
// An address that CUDA does not know: the plural form gives `value`.
Asked unknown(uint64_t value) { return {CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS, kUntouched, value}; }

}  // namespace

TEST_CASE("Memory of pools and of graphs belongs to no context, and that of the device's pool names it") {
  const CurrentContext context;
  CUdeviceptr pooled = 0;
  REQUIRE(cuMemAllocAsync(&pooled, 64, nullptr) == CUDA_SUCCESS);
  CUmemoryPool pool = nullptr;
  REQUIRE(cuDeviceGetDefaultMemPool(&pool, 0) == CUDA_SUCCESS);
  CHECK(ask(CU_POINTER_ATTRIBUTE_CONTEXT, pooled) == both(0));
  CHECK(ask(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, pooled) == both(reinterpret_cast<uint64_t>(pool)));
  CHECK(ask(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, pooled) == both(0));
  CHECK(ask(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, allocate(4)) == both(1));
  CHECK(ask(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, pooled) == both(0));
}

TEST_CASE("Peer tokens are zeros for memory of the device and none for host memory, and not asked for with others") {
  const CurrentContext context;
  void* host = nullptr;
  REQUIRE(cuMemHostAlloc(&host, 64, 0) == CUDA_SUCCESS);
  const auto pinned = reinterpret_cast<CUdeviceptr>(host);
  constexpr auto kTokens = CU_POINTER_ATTRIBUTE_P2P_TOKENS;
  const CUdeviceptr device = allocate(4);
  CHECK(ask(kTokens, device) == Asked{CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE, 0, kUntouched});
  CHECK(ask(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, device) == both(1));
  const uint32_t off = 0;
  CHECK(cuPointerSetAttribute(&off, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, device) == CUDA_SUCCESS);
  CHECK(ask(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, device) == both(0));
  CHECK(ask(kTokens, pinned) == Asked{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE, 0, kUntouched});
  CHECK(ask(kTokens, 0x1234000) == Asked{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE, kUntouched, kUntouched});
  CHECK(ask(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, pinned) == both(0));
  CHECK(ask(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, pinned) == both(CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE));
}

TEST_CASE("A reserved range without memory is known by its range alone, which is not written of other memory") {
  const CurrentContext context;
  CUdeviceptr range = 0;
  constexpr size_t kBytes = 8 << 20;
  REQUIRE(cuMemAddressReserve(&range, kBytes, 0, 0, 0) == CUDA_SUCCESS);
  CHECK(ask(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, range + 5) == unknown(range));
  CHECK(ask(CU_POINTER_ATTRIBUTE_RANGE_SIZE, range + 5) == unknown(kBytes));
  CHECK(ask(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, range) == unknown(0));
  CHECK(ask(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, 0x1234000) == unknown(kUntouched));
  CHECK(ask(CU_POINTER_ATTRIBUTE_RANGE_SIZE, 0x1234000) == unknown(kUntouched));
}
