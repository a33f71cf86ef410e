// A program that empties its environment before its first CUDA call, as daemons do. Its runtime opens the driver's
// library only then.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#include "../../../examples/check.hpp"

__global__ void add(int* at, int value) { at[threadIdx.x] += value; }

int main() {
  clearenv();
  constexpr int kCount = 32;
  int values[kCount], *device = nullptr;
  for (int i = 0; i < kCount; ++i) values[i] = i;
  CHECK_RUNTIME(cudaMalloc(&device, sizeof values));
  CHECK_RUNTIME(cudaMemcpy(device, values, sizeof values, cudaMemcpyHostToDevice));
  add<<<1, kCount>>>(device, 5);
  CHECK_RUNTIME(cudaMemcpy(values, device, sizeof values, cudaMemcpyDeviceToHost));
  bool right = true;
  for (int i = 0; i < kCount; ++i) right &= values[i] == i + 5;
  std::printf("%s\n", right ? "PASSED" : "FAILED");
  return right ? 0 : 1;
}
