// Multiplies two 256 x 256 matrices with 16 x 16 tiles in shared memory and checks every element against the CPU.
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

#include "check.hpp"

constexpr int kTile = 16;

__global__ void matmul(const float* a, const float* b, float* c, int n) {
  __shared__ float tile_a[kTile][kTile], tile_b[kTile][kTile];
  int row = blockIdx.y * kTile + threadIdx.y, column = blockIdx.x * kTile + threadIdx.x;
  float sum = 0;
  for (int tile = 0; tile < n / kTile; ++tile) {
    tile_a[threadIdx.y][threadIdx.x] = a[row * n + tile * kTile + threadIdx.x];
    tile_b[threadIdx.y][threadIdx.x] = b[(tile * kTile + threadIdx.y) * n + column];
    __syncthreads();
    for (int k = 0; k < kTile; ++k) sum += tile_a[threadIdx.y][k] * tile_b[k][threadIdx.x];
    __syncthreads();
  }
  c[row * n + column] = sum;
}

int main() {
  constexpr int kN = 256;
  constexpr size_t kBytes = kN * kN * sizeof(float);
  // Small integers: every sum is exact in float, so the order of additions does not matter.
  std::vector<float> a(kN * kN), b(kN * kN), c(kN * kN);
  for (int i = 0; i < kN * kN; ++i) {
    a[i] = float(i * 7 % 13 - 6);
    b[i] = float(i * 5 % 11 - 5);
  }
  float *device_a, *device_b, *device_c;
  CHECK_RUNTIME(cudaMalloc(&device_a, kBytes));
  CHECK_RUNTIME(cudaMalloc(&device_b, kBytes));
  CHECK_RUNTIME(cudaMalloc(&device_c, kBytes));
  CHECK_RUNTIME(cudaMemcpy(device_a, a.data(), kBytes, cudaMemcpyHostToDevice));
  CHECK_RUNTIME(cudaMemcpy(device_b, b.data(), kBytes, cudaMemcpyHostToDevice));
  matmul<<<dim3(kN / kTile, kN / kTile), dim3(kTile, kTile)>>>(device_a, device_b, device_c, kN);
  CHECK_RUNTIME(cudaGetLastError());
  CHECK_RUNTIME(cudaMemcpy(c.data(), device_c, kBytes, cudaMemcpyDeviceToHost));
  CHECK_RUNTIME(cudaFree(device_a));
  CHECK_RUNTIME(cudaFree(device_b));
  CHECK_RUNTIME(cudaFree(device_c));

  for (int row = 0; row < kN; ++row) {
    for (int column = 0; column < kN; ++column) {
      float sum = 0;
      for (int k = 0; k < kN; ++k) sum += a[row * kN + k] * b[k * kN + column];
      if (c[row * kN + column] != sum) {
        std::printf("element %d, %d: %g instead of %g\nFAILED\n", row, column, c[row * kN + column], sum);
        return 1;
      }
    }
  }
  std::printf("%d x %d matrices multiplied\nPASSED\n", kN, kN);
  return 0;
}
