// A program whose code is for one architecture, without PTX: other devices cannot run it.
#include <cuda_runtime.h>

#include <cstdio>

__global__ void add_one(int* value) { *value += 1; }

int main() {
  int* value = nullptr;
  cudaError_t error = cudaMalloc(&value, sizeof *value);
  if (error == cudaSuccess) {
    add_one<<<1, 1>>>(value);
    error = cudaGetLastError();
  }
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  std::printf("%s\n%s\n", cudaGetErrorName(error), error == cudaSuccess ? "PASSED" : "FAILED");
  return error == cudaSuccess ? 0 : 1;
}
