// Prints the name of the first runtime call's result. Exit code 0 on success, else 3.
#include <cuda_runtime.h>

#include <cstdio>

int main() {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  std::printf("%s\n", cudaGetErrorName(error));
  return error == cudaSuccess ? 0 : 3;
}
