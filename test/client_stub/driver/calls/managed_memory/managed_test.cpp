// The managed calls of the driver API over a fake session.
#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "client_stub/driver/state/managed_memory/managed_heap.hpp"
#include "client_stub/driver/state/managed_memory/managed_memory.hpp"
#include "schema/api_memory.capnp.h"
#include "test/client_stub/driver/state/memory/fixture.hpp"

namespace gpuwire::client {
namespace {

constexpr uint32_t kMemAllocManaged = 1802, kMemAdvise = 1806, kMemPrefetch = 1808, kMemcpyAsync = 2105;
constexpr uint64_t kBase = 0x6200'0000'0000, kStep = 64u << 20;

struct ManagedProcess : test::DeviceProcess {
  ManagedProcess() {
    session->answer(kMemAllocManaged, [this](capnp::MessageBuilder& reply) {
      reply.initRoot<schema::CuMemAllocManagedResults>().setDptr(next);
      next += kStep;
    });
    concurrent(1);
  }
  // Sets the device's attribute for concurrent managed access.
  void concurrent(int value) {
    auto& attributes = const_cast<DeviceFacts&>(*process()->devices[0].facts).attributes;
    attributes[CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS] = value;
  }
  CUdeviceptr allocate(size_t bytes, unsigned flags = CU_MEM_ATTACH_GLOBAL, CUresult expected = CUDA_SUCCESS) {
    CUdeviceptr pointer = 0;
    CHECK(custom::cuMemAllocManaged(&pointer, bytes, flags) == expected);
    return pointer;
  }
  uint64_t next = kBase;
};

}  // namespace

TEST_CASE(
    "Small managed allocations share a block of the server's, large ones have their own, and freeing gives blocks "
    "back") {
  ManagedProcess process;
  CUdeviceptr first = process.allocate(4), second = process.allocate(100);
  CHECK(first == kBase);
  CHECK(second == kBase + 512);
  CHECK(process.session->count(kMemAllocManaged) == 1);
  CUdeviceptr large = process.allocate(3u << 20);
  CHECK(process.session->count(kMemAllocManaged) == 2);
  *reinterpret_cast<volatile char*>(large + (3u << 20) - 1) = 1;
  CUdeviceptr base = 0;
  size_t bytes = 0;
  CHECK(custom::cuMemGetAddressRange_v2(&base, &bytes, second + 50) == CUDA_SUCCESS);
  CHECK(base == second);
  CHECK(bytes == 100);
  CHECK(custom::cuMemFree_v2(large) == CUDA_SUCCESS);
  CHECK(process.session->count(test::kMemFree) == 1);
  CHECK_FALSE(test::part<client::ManagedMemory>().holds(large));
  CHECK(custom::cuMemFree_v2(second) == CUDA_SUCCESS);
  CHECK(custom::cuMemFree_v2(second) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemFree_v2(first + 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(process.allocate(200) == second);
}

TEST_CASE("A managed allocation on addresses that the program uses is replaced by another") {
  ManagedProcess process;
  void* taken =
      mmap(reinterpret_cast<void*>(kBase), 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  REQUIRE(taken == reinterpret_cast<void*>(kBase));
  CHECK(process.allocate(1u << 20) == kBase + kStep);
  CHECK(process.session->count(test::kMemFree) == 1);
  // The server gives taken addresses only: the attempts are bounded.
  process.session->answer(kMemAllocManaged, [](capnp::MessageBuilder& reply) {
    reply.initRoot<schema::CuMemAllocManagedResults>().setDptr(kBase);
  });
  process.allocate(1u << 20, CU_MEM_ATTACH_GLOBAL, CUDA_ERROR_OUT_OF_MEMORY);
  munmap(taken, 4096);
}

TEST_CASE("What cuMemAllocManaged does not take is refused, and so is a device that cannot share the memory") {
  ManagedProcess process;
  CHECK(custom::cuMemAllocManaged(nullptr, 4, CU_MEM_ATTACH_GLOBAL) == CUDA_ERROR_INVALID_VALUE);
  process.allocate(0, CU_MEM_ATTACH_GLOBAL, CUDA_ERROR_INVALID_VALUE);
  for (unsigned flags : {0u, 3u, unsigned(CU_MEM_ATTACH_SINGLE)}) process.allocate(4, flags, CUDA_ERROR_INVALID_VALUE);
  process.concurrent(0);
  process.allocate(4, CU_MEM_ATTACH_GLOBAL, CUDA_ERROR_NOT_SUPPORTED);
  CHECK(process.session->count(kMemAllocManaged) == 0);
}

TEST_CASE("Advice and prefetching are sent for managed memory alone") {
  ManagedProcess process;
  CUdeviceptr memory = process.allocate(10000);
  CUmemLocation device{CU_MEM_LOCATION_TYPE_DEVICE, 0}, host{CU_MEM_LOCATION_TYPE_HOST, 0},
      nowhere{CU_MEM_LOCATION_TYPE_DEVICE, 7};
  CHECK(custom::cuMemAdvise_v2(memory, 10000, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host) == CUDA_SUCCESS);
  CHECK(custom::cuMemAdvise_v2(memory + 1, 9999, CU_MEM_ADVISE_SET_READ_MOSTLY, nowhere) == CUDA_SUCCESS);
  CHECK(custom::cuMemAdvise_v2(memory, 10001, CU_MEM_ADVISE_SET_READ_MOSTLY, device) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemAdvise_v2(memory, 0, CU_MEM_ADVISE_SET_READ_MOSTLY, device) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemAdvise_v2(memory, 4, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, nowhere) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemAdvise_v2(memory, 4, CUmem_advise(77), device) == CUDA_ERROR_INVALID_VALUE);
  CHECK(process.session->count(kMemAdvise) == 2);
  CHECK(custom::cuMemPrefetchAsync_v2(memory, 10000, device, 0, nullptr, false) == CUDA_SUCCESS);
  CHECK(custom::cuMemPrefetchAsync_v2(memory, 10000, nowhere, 0, nullptr, false) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(custom::cuMemPrefetchAsync_v2(memory, 10000, device, 1, nullptr, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK(process.session->count(kMemPrefetch) == 1);
  // Wrong addresses come before a missing context.
  CUcontext context = nullptr;
  REQUIRE(custom::cuCtxPopCurrent_v2(&context) == CUDA_SUCCESS);
  CHECK(custom::cuMemPrefetchAsync_v2(memory, 10001, device, 0, nullptr, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuMemPrefetchAsync_v2(memory, 10000, device, 0, nullptr, false) == CUDA_ERROR_INVALID_CONTEXT);
  REQUIRE(custom::cuCtxPushCurrent_v2(context) == CUDA_SUCCESS);
  CHECK(process.session->count(kMemPrefetch) == 1);
  CHECK(custom::cuStreamAttachMemAsync(nullptr, memory, 0, CU_MEM_ATTACH_GLOBAL, false) == CUDA_SUCCESS);
  CHECK(custom::cuStreamAttachMemAsync(nullptr, memory, 0, CU_MEM_ATTACH_SINGLE, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuStreamAttachMemAsync(nullptr, memory, 4096, CU_MEM_ATTACH_GLOBAL, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK(custom::cuStreamAttachMemAsync(nullptr, memory + 64, 0, CU_MEM_ATTACH_GLOBAL, false) ==
        CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("Managed memory has the attributes that it has natively, and cannot be registered") {
  ManagedProcess process;
  CUdeviceptr memory = process.allocate(100);
  auto attribute = [&](CUpointer_attribute which) {
    uint64_t value = 0;
    CHECK(custom::cuPointerGetAttribute(&value, which, memory + 4) == CUDA_SUCCESS);
    return value;
  };
  CHECK(attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED) == 1);
  CHECK(attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE) == CU_MEMORYTYPE_DEVICE);
  CHECK(attribute(CU_POINTER_ATTRIBUTE_HOST_POINTER) == memory + 4);
  CHECK(attribute(CU_POINTER_ATTRIBUTE_DEVICE_POINTER) == memory + 4);
  CHECK(attribute(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) == 1);
  CHECK(attribute(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) == memory);
  CHECK(attribute(CU_POINTER_ATTRIBUTE_RANGE_SIZE) == 100);
  CHECK(attribute(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS) == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
  CHECK(custom::cuMemHostRegister_v2(reinterpret_cast<void*>(memory), 100, 0) == CUDA_ERROR_INVALID_VALUE);
  unsigned flags = 9;
  CHECK(custom::cuMemHostGetFlags(&flags, reinterpret_cast<void*>(memory)) == CUDA_SUCCESS);
  CHECK(flags == 0);
}

TEST_CASE("A copy that names managed memory as host memory is made by the server, whatever its size") {
  ManagedProcess process;
  constexpr uint64_t kDevice = 0x7000'0000'0000;
  address_map().insert({.base = kDevice, .bytes = 4096, .kind = RangeKind::device});
  CUdeviceptr memory = process.allocate(4096);
  auto* host = reinterpret_cast<void*>(memory);
  CHECK(custom::cuMemcpyHtoD_v2(kDevice, host, 4096, false) == CUDA_SUCCESS);
  CHECK(custom::cuMemcpyDtoH_v2(host, kDevice, 4096, false) == CUDA_SUCCESS);
  CHECK(custom::cuMemcpyDtoHAsync_v2(host, kDevice, 4096, nullptr, false) == CUDA_SUCCESS);
  CHECK(process.session->count(kMemcpyAsync) == 3);
  CHECK(process.session->count(test::ordinal(wire::SessionOrdinal::copy_to_device)) == 0);
  CHECK(process.session->count(test::ordinal(wire::SessionOrdinal::copy_from_device)) == 0);
}

TEST_CASE("Managed memory ends with its context") {
  ManagedProcess process;
  CUdeviceptr memory = process.allocate(100);
  CHECK(custom::cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
  CHECK_FALSE(test::part<client::ManagedMemory>().holds(memory));
  uint64_t value = 0;
  CHECK(custom::cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_IS_MANAGED, memory) == CUDA_ERROR_INVALID_VALUE);
}

}  // namespace gpuwire::client
