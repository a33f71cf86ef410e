// Kernels as nvcc compiles them, from kernels/*.cu.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <thread>

#include "test/server/software_device/execution/engine_fixture.hpp"

namespace gpuwire::software_device::test {
namespace {

TestDevice& common() {
  static TestDevice device;
  static std::string log = device.load(nvcc_ptx("common"));
  REQUIRE(log == "");
  device.printed.clear();
  return device;
}

TEST_CASE("a vector addition of 2^20 floats is exact") {
  TestDevice& device = common();
  constexpr int kCount = 1 << 20;
  float* a = device.array<float>(kCount);
  float* b = device.array<float>(kCount);
  float* c = device.array<float>(kCount);
  for (int i = 0; i < kCount; ++i) a[i] = static_cast<float>(i) * 0.25f, b[i] = static_cast<float>(kCount - i);
  LaunchResult result = device.run("vector_add", {(kCount + 255) / 256}, {256}, a, b, c, kCount);
  CHECK(result.message == "");
  int wrong = 0;
  for (int i = 0; i < kCount; ++i) wrong += c[i] != a[i] + b[i];
  CHECK(wrong == 0);
}

TEST_CASE("a tiled matrix product with shared memory equals the fused sums of the CPU") {
  TestDevice& device = common();
  constexpr int kSize = 256;
  float* a = device.array<float>(kSize * kSize);
  float* b = device.array<float>(kSize * kSize);
  float* c = device.array<float>(kSize * kSize);
  std::mt19937 random(7);
  for (int i = 0; i < kSize * kSize; ++i)
    a[i] = static_cast<float>(random() % 1000) / 999.0f, b[i] = static_cast<float>(random() % 1000) / 999.0f;
  LaunchResult result = device.run("matmul_tiled", {kSize / 16, kSize / 16}, {16, 16}, a, b, c, kSize);
  CHECK(result.message == "");
  int wrong = 0;
  for (int row = 0; row < kSize; row += 17) {
    for (int column = 0; column < kSize; ++column) {
      float sum = 0;
      for (int k = 0; k < kSize; ++k) sum = std::fma(a[row * kSize + k], b[k * kSize + column], sum);
      wrong += sum != c[row * kSize + column];
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("a reduction in dynamic shared memory with one atomic per block gives the sum") {
  TestDevice& device = common();
  constexpr int kCount = 10000;
  int* in = device.array<int>(kCount);
  int* out = device.array<int>(1);
  int expected = 0;
  for (int i = 0; i < kCount; ++i) expected += in[i] = i * 3 % 101;
  device.dynamic_shared_bytes = 256 * 4;
  LaunchResult result = device.run("block_sum", {(kCount + 255) / 256}, {256}, in, out, kCount);
  device.dynamic_shared_bytes = 0;
  CHECK(result.message == "");
  CHECK(*out == expected);
}

TEST_CASE("a reduction by shuffles gives the sum of each block") {
  TestDevice& device = common();
  float* in = device.array<float>(4 * 192);
  float* out = device.array<float>(4);
  for (int i = 0; i < 4 * 192; ++i) in[i] = static_cast<float>(i);
  CHECK(device.run("shuffle_sum", {4}, {192}, in, out).message == "");
  for (int block = 0; block < 4; ++block) CHECK(out[block] == static_cast<float>((block * 192 * 2 + 191) * 192 / 2));
}

TEST_CASE("printf formats as the C library does") {
  TestDevice& device = common();
  char* word = device.array<char>(8);
  std::strcpy(word, "hello");
  CHECK(device.run("say", {1}, {1}, 42, word).message == "");
  char expected[256];
  std::snprintf(expected, sizeof expected, "%d %s %5.2f %lld %c%%|%-6d|%06x|%*d|%e\nword hello\n", 42, "text", 63.0,
                123456789012345LL, 'z', 42, 48879, 7, 42, 0.001);
  CHECK(device.printed == expected);
}

TEST_CASE("a failed assertion is reported with file, line, block and thread") {
  TestDevice& device = common();
  CHECK(device.run("demand", {1}, {1}, 4).fault == Fault::none);
  LaunchResult result = device.run("demand", {2}, {1}, 9);
  CHECK(result.fault == Fault::assert_failed);
  CHECK(device.printed.find("common.cu:") != std::string::npos);
  CHECK(device.printed.find("thread: [0,0,0] Assertion `n < 5` failed.") != std::string::npos);
  CHECK(result.message.find("demand") != std::string::npos);
}

TEST_CASE("a trap ends the grid") { CHECK(common().run("fail_here", {3}, {64}).fault == Fault::trap); }

TEST_CASE("module variables have their initial values and addresses") {
  TestDevice device;
  REQUIRE(device.load(nvcc_ptx("common")) == "");
  float* out = device.array<float>(4);
  CHECK(device.run("variables", {1}, {1}, out).message == "");
  CHECK(out[0] == 1 + 1.5f + 7);
  CHECK(*reinterpret_cast<int*>(device.variable("counter")) == 7);
}

TEST_CASE("device code allocates and frees memory") {
  TestDevice& device = common();
  auto* out = device.array<unsigned long long>(40);
  device.heap.allocated = device.heap.freed = 0;
  CHECK(device.run("heap", {1}, {40}, out).message == "");
  for (int i = 0; i < 40; ++i) CHECK(out[i] == static_cast<unsigned long long>(120 * i));
  CHECK(device.heap.allocated == 40);
  CHECK(device.heap.freed == 40);
}

TEST_CASE("CUB sorts, scans and reduces a block") {
  TestDevice device;
  REQUIRE(device.load(nvcc_ptx("cub_blocks")) == "");
  int* keys = device.array<int>(512);
  float* values = device.array<float>(512);
  std::mt19937 random(3);
  for (int i = 0; i < 512; ++i) keys[i] = static_cast<int>(random()), values[i] = static_cast<float>(keys[i]);
  std::vector<int> sorted(keys, keys + 512);
  std::sort(sorted.begin(), sorted.end());
  CHECK(device.run("sort_block", {1}, {128}, keys, values).message == "");
  CHECK(std::equal(sorted.begin(), sorted.end(), keys));
  for (int i = 0; i < 512; ++i) REQUIRE(values[i] == static_cast<float>(keys[i]));
  int* numbers = device.array<int>(96);
  long long* sum = device.array<long long>(1);
  for (int i = 0; i < 96; ++i) numbers[i] = i * 5 - 100;
  CHECK(device.run("scan_block", {1}, {96}, numbers, sum).message == "");
  int running = 0;
  long long squares = 0;
  for (int i = 0; i < 96; ++i) {
    running += i * 5 - 100;
    squares += static_cast<long long>(i * 5 - 100) * (i * 5 - 100);
    REQUIRE(numbers[i] == running);
  }
  CHECK(*sum == squares);
}

TEST_CASE("launches of several threads run at once on one engine") {
  TestDevice& device = common();
  constexpr int kCount = 20000;
  std::vector<std::thread> threads;
  std::vector<float*> results;
  float* a = device.array<float>(kCount);
  for (int i = 0; i < kCount; ++i) a[i] = static_cast<float>(i);
  for (int t = 0; t < 4; ++t) results.push_back(device.array<float>(kCount));
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 5; ++round)
        device.run("vector_add", {(kCount + 63) / 64}, {64}, a, a, results[static_cast<size_t>(t)], kCount);
    });
  }
  for (std::thread& thread : threads) thread.join();
  int wrong = 0;
  for (float* result : results) {
    for (int i = 0; i < kCount; ++i) wrong += result[i] != 2.0f * a[i];
  }
  CHECK(wrong == 0);
}

}  // namespace
}  // namespace gpuwire::software_device::test
