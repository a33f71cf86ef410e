// Prints the name of what the first runtime call returns. Exit code 0 when it succeeded, 3 when not.
#include <cuda_runtime.h>

#include <cstdio>

int main() {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  std::printf("%s\n", cudaGetErrorName(error));
  return error == cudaSuccess ? 0 : 3;
}
