// Managed memory larger than what the device has left: a kernel writes all of it, another one and the host check it.
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

#include "../../../../examples/check.hpp"

__global__ void fill_beyond(unsigned long long* words, size_t count, unsigned long long seed) {
  const size_t step = size_t(gridDim.x) * blockDim.x;
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += step) words[i] = i * 3 + seed;
}

__global__ void count_wrong_beyond(const unsigned long long* words, size_t count, unsigned long long seed,
                                   unsigned long long* wrong) {
  const size_t step = size_t(gridDim.x) * blockDim.x;
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += step) {
    if (words[i] != i * 3 + seed) atomicAdd(wrong, 1ull);
  }
}

int main() {
  const size_t left = 64 << 20, piece = size_t{1} << 30, beyond = 72 << 20;
  size_t free_bytes = 0, total = 0;
  std::vector<void*> taken;
  CHECK_RUNTIME(cudaMemGetInfo(&free_bytes, &total));
  while (free_bytes > left + (2 << 20)) {
    const size_t bytes = free_bytes - left < piece ? free_bytes - left : piece;
    taken.push_back(nullptr);
    CHECK_RUNTIME(cudaMalloc(&taken.back(), bytes));
    CHECK_RUNTIME(cudaMemGetInfo(&free_bytes, &total));
  }
  void* refused = nullptr;
  if (cudaMalloc(&refused, beyond) != cudaErrorMemoryAllocation) {
    std::printf("plain memory beyond the device was granted\n");
    return 1;
  }
  cudaGetLastError();

  const size_t count = beyond / sizeof(unsigned long long);
  unsigned long long *words = nullptr, *wrong = nullptr;
  CHECK_RUNTIME(cudaMallocManaged(&words, beyond));
  CHECK_RUNTIME(cudaMallocManaged(&wrong, sizeof *wrong));
  *wrong = 0;
  for (unsigned long long seed = 1; seed <= 2; ++seed) {
    fill_beyond<<<64, 64>>>(words, count, seed);
    CHECK_RUNTIME(cudaGetLastError());
    count_wrong_beyond<<<64, 64>>>(words, count, seed, wrong);
    CHECK_RUNTIME(cudaGetLastError());
    CHECK_RUNTIME(cudaDeviceSynchronize());
    unsigned long long wrong_here = 0;
    for (size_t i = 0; i < count; i += 4099) wrong_here += words[i] != i * 3 + seed;
    if (*wrong || wrong_here) {
      std::printf("round %llu: %llu words are wrong on the device, %llu on the host\n", seed, *wrong, wrong_here);
      return 1;
    }
  }
  CHECK_RUNTIME(cudaFree(words));
  CHECK_RUNTIME(cudaFree(wrong));
  for (void* memory : taken) CHECK_RUNTIME(cudaFree(memory));
  std::printf("PASSED\n");
  return 0;
}
