// Adds two vectors of 2^20 floats and checks every element against the CPU.
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

#include "check.hpp"

__global__ void vector_add(const float* a, const float* b, float* c, int count) {
  int i = blockDim.x * blockIdx.x + threadIdx.x;
  if (i < count) c[i] = a[i] + b[i];
}

int main() {
  constexpr int kCount = 1 << 20;
  constexpr size_t kBytes = kCount * sizeof(float);
  std::vector<float> a(kCount), b(kCount), c(kCount);
  for (int i = 0; i < kCount; ++i) {
    a[i] = float(i);
    b[i] = float(i) * 0.5f;
  }

  float *device_a, *device_b, *device_c;
  CHECK_RUNTIME(cudaMalloc(&device_a, kBytes));
  CHECK_RUNTIME(cudaMalloc(&device_b, kBytes));
  CHECK_RUNTIME(cudaMalloc(&device_c, kBytes));
  CHECK_RUNTIME(cudaMemcpy(device_a, a.data(), kBytes, cudaMemcpyHostToDevice));
  CHECK_RUNTIME(cudaMemcpy(device_b, b.data(), kBytes, cudaMemcpyHostToDevice));

  constexpr int kThreads = 256;
  vector_add<<<(kCount + kThreads - 1) / kThreads, kThreads>>>(device_a, device_b, device_c, kCount);
  CHECK_RUNTIME(cudaGetLastError());
  CHECK_RUNTIME(cudaDeviceSynchronize());
  CHECK_RUNTIME(cudaMemcpy(c.data(), device_c, kBytes, cudaMemcpyDeviceToHost));
  CHECK_RUNTIME(cudaFree(device_a));
  CHECK_RUNTIME(cudaFree(device_b));
  CHECK_RUNTIME(cudaFree(device_c));

  for (int i = 0; i < kCount; ++i) {
    if (c[i] != a[i] + b[i]) {
      std::printf("element %d: %g instead of %g\nFAILED\n", i, c[i], a[i] + b[i]);
      return 1;
    }
  }
  std::printf("%d elements added\nPASSED\n", kCount);
  return 0;
}
