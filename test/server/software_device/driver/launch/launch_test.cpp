#include <numeric>
#include <vector>

#include "test/server/software_device/driver/fixture.hpp"

using namespace gpuwire::software_device::test;

TEST_CASE("Every thread of a grid runs, with the parameters it was given") {
  const CurrentContext context;
  const CUfunction fill = function(load(), "fill");
  CUdeviceptr address = allocate(1000 * 4);
  unsigned value = 100, count = 1000;
  void* parameters[] = {&address, &value, &count};
  CHECK(launch(fill, parameters, nullptr, 8, 128) == CUDA_SUCCESS);
  std::vector<unsigned> expected(1000);
  std::iota(expected.begin(), expected.end(), 100u);
  CHECK(read(address, 1000) == expected);
}

TEST_CASE("Parameters may come packed in a buffer") {
  const CurrentContext context;
  const CUfunction fill = function(load(), "fill");
  struct {
    CUdeviceptr address;
    unsigned value = 7, count = 2;
  } packed{allocate(8)};
  size_t bytes = sizeof packed;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  CHECK(cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, extra) == CUDA_SUCCESS);
  CHECK(read(packed.address, 2) == std::vector<unsigned>{7, 8});
  bytes = sizeof packed.address + sizeof packed.value;  // a missing parameter is zero: count 0
  packed.value = 9;
  CHECK(cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, extra) == CUDA_SUCCESS);
  CHECK(read(packed.address, 2) == std::vector<unsigned>{7, 8});
  CHECK(cuLaunchKernel(fill, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("Impossible geometry and too much shared memory are invalid values") {
  const CurrentContext context;
  const CUmodule module = load();
  const CUfunction shared_sum = function(module, "shared_sum");
  CUdeviceptr address = allocate(4);
  void* parameters[] = {&address};
  const auto result = [&](unsigned gx, unsigned gy, unsigned bx, unsigned bz, unsigned shared) {
    return cuLaunchKernel(shared_sum, gx, gy, 1, bx, 1, bz, shared, nullptr, parameters, nullptr);
  };
  CHECK(result(1, 1, 1, 1, 0) == CUDA_SUCCESS);
  CHECK(result(0, 1, 1, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(1, 65536, 1, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(1, 1, 1025, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(1, 1, 0, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(1, 1, 1, 65, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(1, 1, 512, 4, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result(1, 1, 1, 1, 48 * 1024 - 1024) == CUDA_SUCCESS);
  CHECK(result(1, 1, 1, 1, 48 * 1024 - 1023) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuFuncSetAttribute(shared_sum, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 60000) == CUDA_SUCCESS);
  CHECK(result(1, 1, 1, 1, 60000) == CUDA_SUCCESS);
  CHECK(cuFuncSetAttribute(shared_sum, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 227 * 1024) ==
        CUDA_ERROR_INVALID_VALUE);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("What is no function of this context cannot be launched") {
  const CurrentContext context;
  const CUfunction add_one = function(load(), "add_one");
  CHECK(launch_add_one(nullptr, 0) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(launch_add_one(reinterpret_cast<CUfunction>(0x1234560), 0) == CUDA_ERROR_INVALID_HANDLE);
  const CurrentContext other;
  CHECK(launch_add_one(add_one, allocate(4)) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("Launch attributes are taken when results do not depend on them, and refused otherwise") {
  const CurrentContext context;
  const CUfunction add_one = function(load(), "add_one");
  CUdeviceptr address = allocate(4);
  write(address, {0});
  void* parameters[] = {&address};
  CUlaunchAttribute attribute{.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE};
  attribute.value.cooperative = 1;
  CUlaunchConfig config{.gridDimX = 1,
                        .gridDimY = 1,
                        .gridDimZ = 1,
                        .blockDimX = 1,
                        .blockDimY = 1,
                        .blockDimZ = 1,
                        .attrs = &attribute,
                        .numAttrs = 1};
  CHECK(cuLaunchKernelEx(&config, add_one, parameters, nullptr) == CUDA_SUCCESS);
  config.gridDimX = 1000;
  CHECK(cuLaunchKernelEx(&config, add_one, parameters, nullptr) == CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  config.gridDimX = 1;
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {2, 1, 1};
  CHECK(cuLaunchKernelEx(&config, add_one, parameters, nullptr) ==
        CUDA_ERROR_INVALID_CLUSTER_SIZE);  // a grid of half a cluster
  config.gridDimX = 9;
  attribute.value.clusterDim = {9, 1, 1};
  CHECK(cuLaunchKernelEx(&config, add_one, parameters, nullptr) == CUDA_ERROR_INVALID_CLUSTER_SIZE);
  CHECK(cuLaunchCooperativeKernel(add_one, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters) == CUDA_SUCCESS);
  CHECK(read(address, 1)[0] == 2);
}

TEST_CASE("Occupancy follows threads and shared memory") {
  const CurrentContext context;
  const CUmodule module = load();
  int blocks = 0, grid = 0, block = 0;
  CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function(module, "add_one"), 256, 0) == CUDA_SUCCESS);
  CHECK(blocks == 8);
  CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function(module, "add_one"), 32, 0) == CUDA_SUCCESS);
  CHECK(blocks == 32);
  CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function(module, "shared_sum"), 32, 31 * 1024) ==
        CUDA_SUCCESS);
  CHECK(blocks == 6);
  CHECK(cuOccupancyMaxPotentialBlockSize(&grid, &block, function(module, "add_one"), nullptr, 0, 0) == CUDA_SUCCESS);
  CHECK(block == 1024);
  CHECK(grid == 8);
}
