// With CUDA_LAUNCH_BLOCKING=1 each launch returns when its kernel has ended, with the kernel's error. The suite runs
// the program with the variable and without.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "../../../../examples/check.hpp"

__global__ void spin(unsigned* out, unsigned rounds) {
  unsigned value = threadIdx.x;
  for (unsigned i = 0; i < rounds; ++i) value = value * 1664525u + 1013904223u;
  out[threadIdx.x] = value;
}
__global__ void write_to(int* address) { *address = 1; }

bool expect(cudaError_t is, cudaError_t should, const char* what) {
  if (is != should) std::printf("%s: %s where %s was due\n", what, cudaGetErrorName(is), cudaGetErrorName(should));
  return is == should;
}

int main() {
  const char* variable = std::getenv("CUDA_LAUNCH_BLOCKING");
  bool blocking = variable && variable[0] == '1', right = true;
  unsigned* data;
  cudaStream_t stream;
  cudaGraph_t graph;
  CHECK_RUNTIME(cudaMalloc(&data, 4096));
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (int i = 0; i < 3; ++i) {
    spin<<<1, 64, 0, stream>>>(data, 200'000);
    right &= expect(cudaGetLastError(), cudaSuccess, "a launch");
    if (blocking) right &= expect(cudaStreamQuery(stream), cudaSuccess, "the stream behind a launch");
  }
  // A launch that is only recorded has nothing to wait for.
  CHECK_RUNTIME(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  spin<<<1, 64, 0, stream>>>(data, 10);
  right &= expect(cudaGetLastError(), cudaSuccess, "a captured launch");
  CHECK_RUNTIME(cudaStreamEndCapture(stream, &graph));

  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  write_to<<<1, 1, 0, stream>>>(reinterpret_cast<int*>(uintptr_t{0x10}));
  if (blocking) right &= expect(cudaGetLastError(), cudaErrorIllegalAddress, "the launch of a kernel that faults");
  right &= expect(cudaStreamSynchronize(stream), cudaErrorIllegalAddress, "the synchronisation after it");
  std::printf("%s\n", right ? "PASSED" : "FAILED");
  return right ? EXIT_SUCCESS : EXIT_FAILURE;
}
