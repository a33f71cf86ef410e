// A kernel that calls a function and reads a variable of another translation unit (-rdc=true).
#include "check.h"

extern __device__ int triple(int x);
extern __device__ int offset;

__global__ void kernel(int* out) { out[threadIdx.x] = triple(threadIdx.x) + offset; }

int main() {
  int* device = nullptr;
  int host[32];
  CUDA(cudaMalloc(&device, sizeof host));
  kernel<<<1, 32>>>(device);
  CUDA(cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 32; ++i) {
    CHECK(host[i] == 3 * i + 5);
  }
  return 0;
}
