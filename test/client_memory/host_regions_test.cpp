#include "client_stub/driver/host_regions.hpp"

#include <cstring>
#include <vector>

#include "client_stub/driver/notices.hpp"
#include "test/client_memory/fixture.hpp"

namespace gpuwire::client {
namespace {

using test::SentFrame;
using wire::SessionOrdinal;

struct RegionProcess : test::DeviceProcess {
  size_t count(SessionOrdinal ordinal) const { return session->count(uint32_t(ordinal)); }
  std::byte* allocate(size_t bytes, unsigned flags = 0) {
    void* memory = nullptr;
    REQUIRE(hand::cuMemHostAlloc(&memory, bytes, flags) == CUDA_SUCCESS);
    return static_cast<std::byte*>(memory);
  }
  void fill(std::byte* memory, size_t bytes) {
    REQUIRE(hand::cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(memory), 1, bytes, nullptr, false) == CUDA_SUCCESS);
  }
  // As if the server had sent it.
  void receive(std::byte* region, uint64_t offset, std::vector<std::byte> bytes, std::vector<uint8_t> mask = {}) {
    BulkSink sink = host_regions().sink(bytes.size());
    REQUIRE(sink.bytes == bytes.size());
    std::memcpy(sink.data, bytes.data(), bytes.size());
    host_regions().stored(reinterpret_cast<uint64_t>(region), offset, mask, bytes.size());
  }
};

CUdeviceptr device_pointer(void* memory, CUresult expected = CUDA_SUCCESS) {
  CUdeviceptr pointer = 0;
  CHECK(hand::cuMemHostGetDevicePointer_v2(&pointer, memory, 0) == expected);
  return pointer;
}

}  // namespace

TEST_CASE("Small or mapped pinned memory is a region at once, large memory when its device pointer is asked for") {
  RegionProcess process;
  process.allocate(8, CU_MEMHOSTALLOC_PORTABLE);
  CHECK(process.count(SessionOrdinal::region_create) == 1);
  process.allocate(1u << 20, CU_MEMHOSTALLOC_DEVICEMAP);
  CHECK(process.count(SessionOrdinal::region_create) == 2);
  std::byte* large = process.allocate(1u << 20);
  CHECK(process.count(SessionOrdinal::region_create) == 2);
  CHECK(device_pointer(large + 5) == reinterpret_cast<CUdeviceptr>(large + 5));
  CHECK(process.count(SessionOrdinal::region_create) == 3);
  CHECK(device_pointer(large) == reinterpret_cast<CUdeviceptr>(large));
  CHECK(process.count(SessionOrdinal::region_create) == 3);
  CHECK(hand::cuMemFreeHost(large) == CUDA_SUCCESS);
  CHECK(process.count(SessionOrdinal::region_destroy) == 1);
}

TEST_CASE("Many small allocations do not all become regions, but the smallest still do") {
  RegionProcess process;
  for (int i = 0; i < 10; ++i) process.allocate(64u << 10);
  CHECK(process.count(SessionOrdinal::region_create) == 4);
  process.allocate(8);
  CHECK(process.count(SessionOrdinal::region_create) == 5);
}

TEST_CASE("Memory that the server cannot mirror is good for copies, and has no device pointer") {
  RegionProcess process;
  process.session->answer_with(uint32_t(SessionOrdinal::region_create), CUDA_ERROR_NOT_SUPPORTED);
  std::byte* memory = process.allocate(8, CU_MEMHOSTALLOC_DEVICEMAP);
  device_pointer(memory, CUDA_ERROR_NOT_SUPPORTED);
  CHECK(hand::cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(memory), 1, 8, nullptr, false) == CUDA_ERROR_INVALID_VALUE);
  CHECK_FALSE(host_regions().any());
  CHECK(hand::cuMemFreeHost(memory) == CUDA_SUCCESS);
  CHECK(process.count(SessionOrdinal::region_destroy) == 0);
}

TEST_CASE("What the program wrote goes before the work, once, and without the bytes that did not change") {
  RegionProcess process;
  std::byte* memory = process.allocate(100);
  process.fill(memory, 4);
  CHECK(process.count(SessionOrdinal::region_write) == 0);
  memory[10] = std::byte{1};
  memory[12] = std::byte{3};
  process.fill(memory, 4);
  REQUIRE(process.count(SessionOrdinal::region_write) == 1);
  auto frames = process.session->frames();
  const SentFrame& write = frames[frames.size() - 2];
  REQUIRE(write.ordinal == uint32_t(SessionOrdinal::region_write));
  CHECK(write.bulk == std::vector<std::byte>{std::byte{1}, std::byte{0}, std::byte{3}});
  write.read<schema::RegionChange>([&](auto change) {
    CHECK(change.getAddress() == reinterpret_cast<uint64_t>(memory));
    CHECK(change.getOffset() == 10);
    REQUIRE(change.getChanged().size() == 1);
    CHECK(change.getChanged()[0] == 0b101);
  });
  process.fill(memory, 4);
  CHECK(process.count(SessionOrdinal::region_write) == 1);
}

TEST_CASE("What the device wrote is stored, is not sent back, and leaves the program's own bytes alone") {
  RegionProcess process;
  std::byte* memory = process.allocate(100);
  memory[5] = std::byte{50};
  process.receive(memory, 4, {std::byte{40}, std::byte{41}, std::byte{42}}, {0b101});
  CHECK(memory[4] == std::byte{40});
  CHECK(memory[5] == std::byte{50});
  CHECK(memory[6] == std::byte{42});
  process.fill(memory, 4);
  REQUIRE(process.count(SessionOrdinal::region_write) == 1);
  auto frames = process.session->frames();
  CHECK(frames[frames.size() - 2].bulk == std::vector<std::byte>{std::byte{50}});
}

TEST_CASE("Changes from the server that do not fit are dropped") {
  RegionProcess process;
  std::byte* memory = process.allocate(8);
  process.receive(memory, 6, {std::byte{1}, std::byte{1}, std::byte{1}});
  process.receive(memory, ~uint64_t{0}, {std::byte{1}});
  process.receive(memory, 0, {std::byte{1}}, {1, 1});
  process.receive(memory + 8, 0, {std::byte{1}});
  for (int i = 0; i < 16; ++i) CHECK(memory[i] == std::byte{0});
  CHECK(host_regions().sink(wire::kRegionPieceBytes + 1).bytes == 0);
}

TEST_CASE("Asynchronous copies with a region go by its address, so that they keep their place in the stream") {
  RegionProcess process;
  constexpr uint64_t kDevice = 0x7000'0000'0000;
  constexpr uint32_t kMemcpyAsync = 2105;
  address_map().insert({.base = kDevice, .bytes = 4096, .kind = RangeKind::device});
  std::byte* memory = process.allocate(100);
  CHECK(hand::cuMemcpyHtoDAsync_v2(kDevice, memory, 100, nullptr, false) == CUDA_SUCCESS);
  CHECK(hand::cuMemcpyDtoHAsync_v2(memory, kDevice, 100, nullptr, false) == CUDA_SUCCESS);
  CHECK(process.session->count(kMemcpyAsync) == 2);
  std::vector<std::byte> pageable(100);
  CHECK(hand::cuMemcpyHtoDAsync_v2(kDevice, pageable.data(), 100, nullptr, false) == CUDA_SUCCESS);
  CHECK(process.session->count(kMemcpyAsync) == 2);
}

TEST_CASE("Registered memory is a region while it is registered, with what it held before") {
  RegionProcess process;
  std::vector<std::byte> memory(100, std::byte{7});
  REQUIRE(hand::cuMemHostRegister_v2(memory.data(), memory.size(), CU_MEMHOSTREGISTER_DEVICEMAP) == CUDA_SUCCESS);
  CHECK(device_pointer(memory.data()) == reinterpret_cast<CUdeviceptr>(memory.data()));
  process.fill(memory.data(), 4);
  REQUIRE(process.count(SessionOrdinal::region_write) == 1);
  CHECK(hand::cuMemHostUnregister(memory.data()) == CUDA_SUCCESS);
  CHECK(process.count(SessionOrdinal::region_destroy) == 1);
  CHECK(hand::cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(memory.data()), 1, 4, nullptr, false) == CUDA_SUCCESS);  // the server judges
}

TEST_CASE("A region's device pointer attribute is its own address") {
  RegionProcess process;
  std::byte* memory = process.allocate(100);
  CUdeviceptr pointer = 0;
  CHECK(hand::cuPointerGetAttribute(&pointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, reinterpret_cast<CUdeviceptr>(memory + 3)) == CUDA_SUCCESS);
  CHECK(pointer == reinterpret_cast<CUdeviceptr>(memory + 3));
  std::byte* large = process.allocate(1u << 20);
  CHECK(hand::cuPointerGetAttribute(&pointer, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, reinterpret_cast<CUdeviceptr>(large)) == CUDA_ERROR_INVALID_VALUE);
}

}  // namespace gpuwire::client
