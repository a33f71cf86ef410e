#include <algorithm>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#include "test/server/software_device/driver/fixture.hpp"

using namespace gpuwire::software_device::test;

namespace {

std::vector<uint8_t> counting(size_t bytes) {
  std::vector<uint8_t> out(bytes);
  std::iota(out.begin(), out.end(), uint8_t{0});
  return out;
}

}  // namespace

TEST_CASE("Copies keep to the memory they name") {
  const CurrentContext context;
  const CUdeviceptr address = allocate(64);
  uint8_t host[65] = {};
  CHECK(cuMemcpyHtoD(address, host, 64) == CUDA_SUCCESS);
  CHECK(cuMemcpyHtoD(address, host, 65) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyDtoH(host, address + 1, 64) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyHtoD(reinterpret_cast<CUdeviceptr>(host), host, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyHtoD(0, host, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyHtoD(address, host, 0) == CUDA_SUCCESS);
}

TEST_CASE(
    "A small copy from page-locked memory reads it in the call, unless its own stream has work or it is blocking") {
  const CurrentContext context;
  CUstream writing = nullptr;
  REQUIRE(cuStreamCreate(&writing, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
  const CUdeviceptr to = allocate(64 << 10);
  uint8_t* from = nullptr;
  REQUIRE(cuMemAllocHost(reinterpret_cast<void**>(&from), 64 << 10) == CUDA_SUCCESS);
  // Returns what the copy brings if a function in a stream for which the NULL stream waits is still to write 2 over 1.
  const auto brought = [&](size_t bytes, auto&& copy) {
    std::fill(from, from + (64 << 10), uint8_t{1});
    Barrier barrier;
    REQUIRE(cuLaunchHostFunc(writing, Barrier::wait, &barrier) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(from), 2, 64 << 10, writing) == CUDA_SUCCESS);
    std::thread opening;
    copy(barrier, bytes, opening);
    if (opening.joinable()) {
      opening.join();
    } else {
      barrier.gate.set_value();
    }
    uint8_t found = 0;
    CHECK(cuMemcpyDtoH(&found, to, 1) == CUDA_SUCCESS);
    return int(found);
  };
  const auto asynchronous = [&](Barrier&, size_t bytes, std::thread&) {
    CHECK(cuMemcpyHtoDAsync(to, from, bytes, nullptr) == CUDA_SUCCESS);
  };
  const auto behind_own_work = [&](Barrier&, size_t bytes, std::thread&) {
    CHECK(cuMemsetD8Async(to, 0, 1, nullptr) == CUDA_SUCCESS);
    CHECK(cuMemcpyHtoDAsync(to, from, bytes, nullptr) == CUDA_SUCCESS);
  };
  const auto blocking = [&](Barrier& barrier, size_t bytes, std::thread& opening) {
    opening = std::thread([&] { barrier.gate.set_value(); });
    CHECK(cuMemcpyHtoD(to, from, bytes) == CUDA_SUCCESS);
  };
  CHECK(brought(16 << 10, asynchronous) == 1);
  CHECK(brought(64 << 10, asynchronous) == 2);
  CHECK(brought(16 << 10, behind_own_work) == 2);
  CHECK(brought(16 << 10, blocking) == 2);
  CHECK(cuMemFreeHost(from) == CUDA_SUCCESS);
  CHECK(cuStreamDestroy(writing) == CUDA_SUCCESS);
}

TEST_CASE("A copy between any two places finds out where they are") {
  const CurrentContext context;
  const CUdeviceptr address = allocate(16);
  uint8_t from[16], to[16] = {};
  std::iota(from, from + 16, uint8_t{1});
  CHECK(cuMemcpy(address, reinterpret_cast<CUdeviceptr>(from), 16) == CUDA_SUCCESS);
  CHECK(cuMemcpy(reinterpret_cast<CUdeviceptr>(to), address, 16) == CUDA_SUCCESS);
  CHECK(std::equal(from, from + 16, to));
}

TEST_CASE("An asynchronous copy from the program's memory has read it when the call returns") {
  const CurrentContext context;
  const CUdeviceptr address = allocate(4);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
  for (unsigned i = 0; i < 100; ++i) {
    unsigned value = i;
    REQUIRE(cuMemcpyHtoDAsync(address, &value, 4, stream) == CUDA_SUCCESS);
    value = 12345;
    unsigned back = 0;
    REQUIRE(cuMemcpyDtoHAsync(&back, address, 4, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    REQUIRE(back == i);
  }
}

TEST_CASE("A rectangle is copied between pitches") {
  const CurrentContext context;
  const auto host = counting(8 * 16);
  const CUdeviceptr address = allocate(8 * 32);
  REQUIRE(cuMemsetD8(address, 0xEE, 8 * 32) == CUDA_SUCCESS);
  const CUDA_MEMCPY2D copy{.srcXInBytes = 2,
                           .srcY = 1,
                           .srcMemoryType = CU_MEMORYTYPE_HOST,
                           .srcHost = host.data(),
                           .srcPitch = 16,
                           .dstXInBytes = 3,
                           .dstY = 2,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = address,
                           .dstPitch = 32,
                           .WidthInBytes = 5,
                           .Height = 3};
  CHECK(cuMemcpy2D(&copy) == CUDA_SUCCESS);
  std::vector<uint8_t> back(8 * 32);
  REQUIRE(cuMemcpyDtoH(back.data(), address, back.size()) == CUDA_SUCCESS);
  for (size_t y = 0; y < 8; ++y) {
    for (size_t x = 0; x < 32; ++x) {
      const bool inside = y >= 2 && y < 5 && x >= 3 && x < 8;
      CHECK(back[y * 32 + x] == (inside ? host[(y - 2 + 1) * 16 + x - 3 + 2] : 0xEE));
    }
  }
  CUDA_MEMCPY2D wrong = copy;
  wrong.WidthInBytes = 30;
  CHECK(cuMemcpy2D(&wrong) == CUDA_ERROR_INVALID_VALUE);
  wrong = copy;
  wrong.dstY = 7;
  CHECK(cuMemcpy2D(&wrong) == CUDA_ERROR_INVALID_VALUE);
  wrong = copy;
  wrong.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  CHECK(cuMemcpy2D(&wrong) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("A box is copied slice by slice") {
  const CurrentContext context;
  const auto host = counting(4 * 4 * 4);
  const CUdeviceptr address = allocate(4 * 4 * 4);
  REQUIRE(cuMemsetD8(address, 0, 64) == CUDA_SUCCESS);
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host.data();
  copy.srcPitch = copy.dstPitch = 4;
  copy.srcHeight = copy.dstHeight = 4;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = address;
  copy.srcXInBytes = copy.dstXInBytes = 1;
  copy.srcY = copy.dstY = copy.srcZ = copy.dstZ = 1;
  copy.WidthInBytes = copy.Height = copy.Depth = 2;
  CHECK(cuMemcpy3D(&copy) == CUDA_SUCCESS);
  std::vector<uint8_t> back(64);
  REQUIRE(cuMemcpyDtoH(back.data(), address, 64) == CUDA_SUCCESS);
  for (size_t i = 0; i < 64; ++i) {
    const size_t x = i % 4, y = i / 4 % 4, z = i / 16;
    const bool inside = (x == 1 || x == 2) && (y == 1 || y == 2) && (z == 1 || z == 2);
    CHECK(back[i] == (inside ? host[i] : 0));
  }
}

TEST_CASE("Memory is filled by bytes, halves and words, in lines and rectangles") {
  const CurrentContext context;
  const CUdeviceptr address = allocate(64);
  CHECK(cuMemsetD8(address, 0x11, 64) == CUDA_SUCCESS);
  CHECK(cuMemsetD16(address + 4, 0x2222, 2) == CUDA_SUCCESS);
  CHECK(cuMemsetD32(address + 8, 0x33333333, 1) == CUDA_SUCCESS);
  CHECK(cuMemsetD2D8(address + 16, 16, 0x44, 4, 3) == CUDA_SUCCESS);
  const auto words = read(address, 16);
  CHECK(words == std::vector<unsigned>{0x11111111, 0x22222222, 0x33333333, 0x11111111, 0x44444444, 0x11111111,
                                       0x11111111, 0x11111111, 0x44444444, 0x11111111, 0x11111111, 0x11111111,
                                       0x44444444, 0x11111111, 0x11111111, 0x11111111});
  CHECK(cuMemsetD32(address + 2, 0, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemsetD8(address, 0, 65) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemsetD2D8(address, 4, 0, 8, 2) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemsetD8(address, 0, 0) == CUDA_SUCCESS);
}
