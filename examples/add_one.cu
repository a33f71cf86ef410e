// Adds one to ten integers on the device.
#include <cuda_runtime.h>

#include <cstdio>

#include "check.hpp"

__global__ void add_one(int* data, int count) {
  int index = threadIdx.x + blockIdx.x * blockDim.x;
  if (index < count) data[index] += 1;
}

int main() {
  constexpr int kCount = 10;
  int host[kCount];
  for (int i = 0; i < kCount; ++i) host[i] = i;

  int* device = nullptr;
  CHECK_RUNTIME(cudaMalloc(&device, sizeof host));
  CHECK_RUNTIME(cudaMemcpy(device, host, sizeof host, cudaMemcpyHostToDevice));
  add_one<<<1, kCount>>>(device, kCount);
  CHECK_RUNTIME(cudaGetLastError());
  CHECK_RUNTIME(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost));
  CHECK_RUNTIME(cudaFree(device));

  bool right = true;
  for (int i = 0; i < kCount; ++i) {
    std::printf("%d%c", host[i], i + 1 < kCount ? ' ' : '\n');
    right &= host[i] == i + 1;
  }
  std::printf("%s\n", right ? "PASSED" : "FAILED");
  return right ? 0 : 1;
}
