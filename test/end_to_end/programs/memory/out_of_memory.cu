// Allocates device memory until there is none, frees it, and continues.
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

#include "../../../../examples/check.hpp"

__global__ void store(int* out) { *out = 5; }

int main() {
  size_t free_bytes = 0, total_bytes = 0;
  CHECK_RUNTIME(cudaMemGetInfo(&free_bytes, &total_bytes));
  size_t piece = total_bytes / 8;
  std::vector<void*> pieces;
  cudaError_t error = cudaSuccess;
  while (pieces.size() < 64) {
    void* memory;
    error = cudaMalloc(&memory, piece);
    if (error != cudaSuccess) break;
    pieces.push_back(memory);
  }
  cudaGetLastError();
  for (void* memory : pieces) CHECK_RUNTIME(cudaFree(memory));
  size_t free_after = 0;
  CHECK_RUNTIME(cudaMemGetInfo(&free_after, &total_bytes));
  int *device, value = 0;
  CHECK_RUNTIME(cudaMalloc(&device, sizeof value));
  store<<<1, 1>>>(device);
  CHECK_RUNTIME(cudaMemcpy(&value, device, sizeof value, cudaMemcpyDeviceToHost));
  // Other processes of a shared GPU begin and end meanwhile; a piece that was not freed would still be detected.
  bool all_free = free_after + piece / 2 >= free_bytes;
  bool right = error == cudaErrorMemoryAllocation && !pieces.empty() && pieces.size() <= 8 && all_free && value == 5;
  std::printf("%zu pieces, then %s, %s again\n%s\n", pieces.size(), cudaGetErrorName(error),
              all_free ? "all free" : "not all free", right ? "PASSED" : "FAILED");
  return right ? 0 : 1;
}
