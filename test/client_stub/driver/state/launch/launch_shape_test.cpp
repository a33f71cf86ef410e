#include "client_stub/driver/state/launch/launch_shape.hpp"

#include <doctest/doctest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "test/client_stub/driver/state/memory/fixture.hpp"

namespace gpuwire::client {
namespace {

CUresult check(LaunchShape shape) {
  static const std::vector<int32_t> attributes = test::small_device_facts().devices[0].attributes;
  return check_shape(shape, attributes);
}

}  // namespace

TEST_CASE("A launch with a zero dimension is an invalid value") {
  CHECK(check({{1, 1, 1}, {1, 1, 1}, 0}) == CUDA_SUCCESS);
  for (int i = 0; i < 3; ++i) {
    LaunchShape grid{{1, 1, 1}, {1, 1, 1}, 0}, block = grid;
    grid.grid[i] = 0;
    block.block[i] = 0;
    CHECK(check(grid) == CUDA_ERROR_INVALID_VALUE);
    CHECK(check(block) == CUDA_ERROR_INVALID_VALUE);
  }
}

TEST_CASE("A launch beyond the device's geometry is an invalid value, up to it is not") {
  CHECK(check({{0x7fffffff, 65535, 65535}, {1024, 1, 1}, 0}) == CUDA_SUCCESS);
  CHECK(check({{0x80000000u, 1, 1}, {1, 1, 1}, 0}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(check({{1, 65536, 1}, {1, 1, 1}, 0}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(check({{1, 1, 65536}, {1, 1, 1}, 0}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(check({{1, 1, 1}, {1025, 1, 1}, 0}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(check({{1, 1, 1}, {1, 1, 65}, 0}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(check({{1, 1, 1}, {32, 33, 1}, 0}) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("Thread counts that overflow 32 bits are not taken for small ones") {
  CHECK(check_shape({{1, 1, 1}, {65536, 65536, 1}, 0}, {}) == CUDA_SUCCESS);
  CHECK(check({{1, 1, 1}, {1024, 1024, 64}, 0}) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("Parameters are packed at their offsets, and the bytes between them are zero") {
  const unsigned seed = 5;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    fatbin::ParameterLayout layout;
    std::vector<std::vector<std::byte>> values;
    uint32_t end = 0;
    for (unsigned i = 0, count = random() % 12; i < count; ++i) {
      uint32_t size = 1 + random() % 40, offset = (end + 7) / 8 * 8;
      REQUIRE(layout.add(offset, size));
      std::vector<std::byte> value(size);
      for (auto& byte : value) byte = std::byte(1 + random() % 255);
      values.push_back(value);
      end = offset + size;
    }
    std::vector<void*> addresses;
    for (auto& value : values) addresses.push_back(value.data());
    std::vector<std::byte> expected(end), out(end);
    for (size_t i = 0; i < values.size(); ++i)
      std::memcpy(expected.data() + layout.offsets[i], values[i].data(), layout.sizes[i]);
    LaunchParameters parameters;
    REQUIRE(find_parameters(end ? addresses.data() : nullptr, nullptr, end, parameters) == CUDA_SUCCESS);
    for (Reading reading : {Reading::as_natively, Reading::what_is_there}) {
      std::fill(out.begin(), out.end(), std::byte{});
      REQUIRE(pack_parameters(parameters, layout, out, reading) == CUDA_SUCCESS);
      REQUIRE(out == expected);
    }

    size_t bytes = expected.size();
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, expected.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    REQUIRE(find_parameters(nullptr, extra, end, parameters) == CUDA_SUCCESS);
    std::vector<std::byte> again(end);
    REQUIRE(pack_parameters(parameters, layout, again) == CUDA_SUCCESS);
    REQUIRE(again == expected);
  }
}

TEST_CASE("A packed buffer that is shorter than the parameters is followed by zeros") {
  fatbin::ParameterLayout layout;
  REQUIRE((layout.add(0, 4) && layout.add(8, 8)));
  std::vector<std::byte> given(6, std::byte{0x5a}), out(16);
  size_t bytes = given.size();
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, given.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  LaunchParameters parameters;
  REQUIRE(find_parameters(nullptr, extra, 16, parameters) == CUDA_SUCCESS);
  REQUIRE(pack_parameters(parameters, layout, out) == CUDA_SUCCESS);
  std::vector<std::byte> expected = given;
  expected.resize(16);
  CHECK(out == expected);
}

TEST_CASE("Parameters whose number only the server says are read as far as there is memory, and no further") {
  const auto page = size_t(sysconf(_SC_PAGESIZE));
  auto* const pages =
      static_cast<std::byte*>(mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  REQUIRE(pages != MAP_FAILED);
  REQUIRE(mprotect(pages + page, page, PROT_NONE) == 0);
  fatbin::ParameterLayout layout;
  REQUIRE((layout.add(0, 8) && layout.add(8, 8)));
  std::vector<std::byte> out(layout.bytes);
  std::byte value[8] = {std::byte{1}};
  auto pack = [&](void** each) {
    LaunchParameters parameters;
    REQUIRE(find_parameters(each, nullptr, layout.bytes, parameters) == CUDA_SUCCESS);
    return pack_parameters(parameters, layout, out, Reading::what_is_there);
  };
  void* whole[] = {value, pages + page - 8};
  CHECK(pack(whole) == CUDA_SUCCESS);
  void* beyond[] = {value, pages + page - 4};
  CHECK(pack(beyond) == CUDA_ERROR_INVALID_VALUE);
  void* none[] = {value, nullptr};
  CHECK(pack(none) == CUDA_ERROR_INVALID_VALUE);
  // The program's list has one entry and ends there.
  auto* const list = reinterpret_cast<void**>(pages + page - sizeof(void*));
  *list = value;
  CHECK(pack(list) == CUDA_ERROR_INVALID_VALUE);
  munmap(pages, 2 * page);
}

TEST_CASE(
    "A cluster must divide the grid, be what the kernel was compiled for, and be no larger than clusters may be") {
  auto check = [](uint32_t grid_x, uint32_t grid_y, ClusterShape launched, ClusterShape compiled = {},
                  bool non_portable = false) {
    return check_cluster({{grid_x, grid_y, 1}, {32, 1, 1}, 0}, launched, compiled, non_portable);
  };
  constexpr CUresult kRefused = CUDA_ERROR_INVALID_CLUSTER_SIZE;
  const ClusterShape none, two{{2, 1, 1}};
  CHECK(check(7, 1, none) == CUDA_SUCCESS);
  CHECK(check(8, 1, none, two) == CUDA_SUCCESS);
  CHECK(check(7, 1, none, two) == kRefused);
  CHECK(check(8, 1, two, two) == CUDA_SUCCESS);
  CHECK(check(8, 1, {{4, 1, 1}}, two) == kRefused);
  CHECK(check(9, 1, {{3, 1, 1}}) == CUDA_SUCCESS);
  CHECK(check(7, 1, two) == kRefused);
  CHECK(check(8, 2, {{2, 2, 1}}) == CUDA_SUCCESS);
  CHECK(check(8, 3, {{2, 2, 1}}) == kRefused);
  CHECK(check(8, 1, {{2, 0, 1}}) == kRefused);
  CHECK(check(8, 1, {{1, 1, 2}}) == kRefused);
  CHECK(check(9, 1, {{9, 1, 1}}) == kRefused);
  CHECK(check(16, 1, {{16, 1, 1}}) == kRefused);
  CHECK(check(16, 1, {{16, 1, 1}}, none, true) == CUDA_SUCCESS);
  CHECK(check(32, 1, {{32, 1, 1}}, none, true) == kRefused);
}

TEST_CASE("Missing, doubled and unknown parameters are invalid values") {
  int value = 1;
  void* each[] = {&value};
  size_t bytes = 4;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &value, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  void* unknown[] = {reinterpret_cast<void*>(uintptr_t(9)), nullptr, CU_LAUNCH_PARAM_END};
  LaunchParameters parameters;
  CHECK(find_parameters(nullptr, nullptr, 4, parameters) == CUDA_ERROR_INVALID_VALUE);
  CHECK(find_parameters(nullptr, nullptr, 0, parameters) == CUDA_SUCCESS);
  CHECK(find_parameters(each, extra, 4, parameters) == CUDA_ERROR_INVALID_VALUE);
  void* only_a_size[] = {CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  CHECK(find_parameters(nullptr, only_a_size, 4, parameters) == CUDA_ERROR_INVALID_VALUE);
  CHECK(find_parameters(nullptr, unknown, 4, parameters) == CUDA_ERROR_INVALID_VALUE);
  CHECK(find_parameters(nullptr, extra, 4, parameters) == CUDA_SUCCESS);
}

}  // namespace gpuwire::client
