// Prints the name of the error each of a sequence of wrong calls gives. errors.expected holds what an H200 gives
// natively.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>

__global__ void nothing() {}
__global__ void shared(int* out) {
  extern __shared__ int memory[];
  if (out) *out = memory[0];
}
__global__ void store(int* address) { *address = 1; }

static void show(const char* what, cudaError_t error) { std::printf("%-44s %s\n", what, cudaGetErrorName(error)); }

int main() {
  show("cudaSetDevice(1000)", cudaSetDevice(1000));
  show("  cudaGetLastError", cudaGetLastError());
  show("  cudaGetLastError again", cudaGetLastError());

  nothing<<<1, 4096>>>();
  show("launch of 4096 threads a block, peek", cudaPeekAtLastError());
  void* memory = nullptr;
  show("a good cudaMalloc in between", cudaMalloc(&memory, 256));
  show("  cudaGetLastError", cudaGetLastError());
  nothing<<<0, 32>>>();
  show("launch of an empty grid", cudaGetLastError());
  nothing<<<dim3(1, 70000, 1), 1>>>();
  show("launch of a grid too high", cudaGetLastError());
  shared<<<1, 32, 1 << 20>>>(nullptr);
  show("launch with 1 MiB of shared memory", cudaGetLastError());
  nothing<<<1, 32>>>();
  show("a good launch", cudaGetLastError());
  show("  cudaDeviceSynchronize", cudaDeviceSynchronize());

  void* huge = nullptr;
  show("cudaMalloc of 1 PiB", cudaMalloc(&huge, size_t(1) << 50));
  show("  cudaGetLastError", cudaGetLastError());
  show("cudaFree of what was never allocated", cudaFree(reinterpret_cast<void*>(uintptr_t(0x10))));
  cudaGetLastError();
  show("cudaFree(NULL)", cudaFree(nullptr));
  int host[4] = {};
  show("cudaMemcpy with a kind that is none", cudaMemcpy(memory, host, 16, cudaMemcpyKind(42)));
  cudaGetLastError();
  show("cudaMemset through NULL", cudaMemset(nullptr, 0, 16));
  cudaGetLastError();
  cudaEvent_t event;
  cudaEventCreate(&event);
  show("cudaEventElapsedTime, never recorded", [&] {
    float ms;
    return cudaEventElapsedTime(&ms, event, event);
  }());
  cudaGetLastError();
  show("cudaEventQuery, never recorded", cudaEventQuery(event));
  show("cudaFuncGetAttributes of no function", [] {
    cudaFuncAttributes a;
    return cudaFuncGetAttributes(&a, reinterpret_cast<const void*>(&show));
  }());
  cudaGetLastError();
  show("cudaMemcpyToSymbol of no symbol", cudaMemcpyToSymbol(reinterpret_cast<const void*>(&show), host, 4));
  cudaGetLastError();
  show("cudaHostUnregister of plain memory", cudaHostUnregister(host));
  cudaGetLastError();
  show("a clean slate", cudaGetLastError());

  store<<<1, 1>>>(reinterpret_cast<int*>(uintptr_t(0x40)));
  show("launch that will store to 0x40", cudaGetLastError());
  show("  cudaDeviceSynchronize", cudaDeviceSynchronize());
  show("  cudaGetLastError", cudaGetLastError());
  show("  cudaMalloc after it", cudaMalloc(&huge, 256));
  show("  cudaMemcpy after it", cudaMemcpy(host, memory, 16, cudaMemcpyDeviceToHost));
  nothing<<<1, 32>>>();
  show("  launch after it", cudaGetLastError());
  int count = 0;
  show("  cudaGetDeviceCount after it", cudaGetDeviceCount(&count));
  show("  cudaDeviceReset", cudaDeviceReset());
  show("  cudaMalloc after the reset", cudaMalloc(&memory, 256));
  return 0;
}
