#include <thread>

#include "test/server/software_device/driver/fixture.hpp"

using namespace gpuwire::software_device::test;

TEST_CASE("A fault is what every call answers with, until the context is destroyed") {
  const CurrentContext elsewhere(1);
  {
    const CurrentContext context;
    const CUmodule module = load();
    CUdeviceptr address = allocate(4);
    unsigned long long offset = 4;
    void* parameters[] = {&address, &offset};
    CHECK(launch(function(module, "store_far"), parameters) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
    CUdeviceptr more = 0;
    CUevent event = nullptr;
    CHECK(cuMemAlloc(&more, 4) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuMemFree(address) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuEventCreate(&event, 0) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuStreamQuery(nullptr) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
    CUcontext current = nullptr;
    CHECK(cuCtxGetCurrent(&current) == CUDA_SUCCESS);
    int count = 0;
    CHECK(cuDeviceGetCount(&count) == CUDA_SUCCESS);
  }
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  allocate(4);
}

TEST_CASE("Work behind a fault is not done") {
  const CurrentContext context;
  const CUmodule module = load();
  auto* const word = [] {
    void* host = nullptr;
    REQUIRE(cuMemHostAlloc(&host, 4, 0) == CUDA_SUCCESS);
    return static_cast<volatile unsigned*>(host);
  }();
  *word = 0;
  const CUfunction die = function(module, "die"), add_one = function(module, "add_one");
  CHECK(launch(die, nullptr) == CUDA_SUCCESS);
  const CUresult second = launch_add_one(add_one, reinterpret_cast<CUdeviceptr>(word));
  CHECK((second == CUDA_SUCCESS || second == CUDA_ERROR_LAUNCH_FAILED));
  CHECK(cuCtxSynchronize() == CUDA_ERROR_LAUNCH_FAILED);
  CHECK(*word == 0);
}

TEST_CASE("A misaligned access is told apart") {
  const CurrentContext context;
  CUdeviceptr address = allocate(16);
  unsigned long long offset = 2;
  void* parameters[] = {&address, &offset};
  CHECK(launch(function(load(), "store_far"), parameters) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_MISALIGNED_ADDRESS);
}

TEST_CASE("Memory of the program that was never registered is not the device's") {
  const CurrentContext context;
  unsigned own = 0;
  CHECK(launch_add_one(function(load(), "add_one"), reinterpret_cast<CUdeviceptr>(&own)) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(own == 0);
}

TEST_CASE("A fault is told in the device's other contexts, and in none that is made later") {
  {
    const CurrentContext other;
    CUstream stream = nullptr;
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    {
      const CurrentContext context;
      CHECK(launch(function(load(), "die"), nullptr) == CUDA_SUCCESS);
      CHECK(cuCtxSynchronize() == CUDA_ERROR_LAUNCH_FAILED);
    }
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_ERROR_LAUNCH_FAILED);
    CHECK(cuCtxSynchronize() == CUDA_ERROR_LAUNCH_FAILED);
  }
  const CurrentContext later;
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  allocate(4);
}
