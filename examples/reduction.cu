// Sums 2^20 integers: a tree in shared memory per block, one atomic per block; the same with warp shuffles.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <vector>

#include "check.hpp"

constexpr int kThreads = 256;

__global__ void sum_shared(const uint32_t* in, unsigned long long* out, int count) {
  __shared__ unsigned long long partial[kThreads];
  unsigned long long sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) sum += in[i];
  partial[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) atomicAdd(out, partial[0]);
}

__global__ void sum_shuffle(const uint32_t* in, unsigned long long* out, int count) {
  unsigned long long sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) sum += in[i];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 == 0) atomicAdd(out, sum);
}

int main() {
  constexpr int kCount = 1 << 20;
  std::vector<uint32_t> host(kCount);
  uint32_t state = 12345;
  unsigned long long expected = 0;
  for (auto& value : host) {
    state = state * 1664525u + 1013904223u;
    value = state >> 8;
    expected += value;
  }
  uint32_t* in;
  unsigned long long* out;
  CHECK_RUNTIME(cudaMalloc(&in, kCount * sizeof(uint32_t)));
  CHECK_RUNTIME(cudaMalloc(&out, 2 * sizeof(unsigned long long)));
  CHECK_RUNTIME(cudaMemcpy(in, host.data(), kCount * sizeof(uint32_t), cudaMemcpyHostToDevice));
  CHECK_RUNTIME(cudaMemset(out, 0, 2 * sizeof(unsigned long long)));
  sum_shared<<<64, kThreads>>>(in, out, kCount);
  CHECK_RUNTIME(cudaGetLastError());
  sum_shuffle<<<64, kThreads>>>(in, out + 1, kCount);
  CHECK_RUNTIME(cudaGetLastError());
  unsigned long long sums[2];
  CHECK_RUNTIME(cudaMemcpy(sums, out, sizeof sums, cudaMemcpyDeviceToHost));
  CHECK_RUNTIME(cudaFree(in));
  CHECK_RUNTIME(cudaFree(out));
  bool right = sums[0] == expected && sums[1] == expected;
  std::printf("shared memory %llu, shuffles %llu, expected %llu\n%s\n", sums[0], sums[1], expected,
              right ? "PASSED" : "FAILED");
  return right ? 0 : 1;
}
