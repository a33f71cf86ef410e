// usage: device_output [order|assert|trap|trap-polled|trap-launched]: printf of device code comes out on the client
// before the synchronize returns; a failed assert is an error, with its text on stderr; a trap is an error after the
// earlier output, also if a query or a later launch finds it. order: what the program has printed and not flushed comes
// first, also when stdout is no terminal.
#include <cassert>
#include <cstdio>
#include <cstring>

#include <cuda_runtime.h>

#include "../../../../examples/check.hpp"

__global__ void speak(int value, double fraction, const char* word) {
  printf("kernel says %d, %.3f and %s\n", value, fraction, word);
}
__global__ void fail(int value) { assert(value == 0 && "the value is zero"); }
__global__ void stop() {
  printf("before the trap\n");
  __trap();
}

namespace {

cudaError_t poll(cudaEvent_t event) {
  cudaError_t result = cudaErrorNotReady;
  while (result == cudaErrorNotReady) result = cudaEventQuery(event);
  return result;
}

// Traps in this way; returns the error of a synchronisation.
cudaError_t after_a_trap(const char* how) {
  cudaEvent_t event;
  CHECK_RUNTIME(cudaEventCreate(&event));
  stop<<<1, 1>>>();
  if (!std::strcmp(how, "trap-polled")) {
    cudaEventRecord(event);
    poll(event);
  }
  if (!std::strcmp(how, "trap-launched")) {
    while (cudaGetLastError() == cudaSuccess) speak<<<1, 1>>>(0, 0, nullptr);
  }
  return cudaDeviceSynchronize();
}

}  // namespace

int main(int argc, char** argv) {
  const char* how = argc > 1 ? argv[1] : "";
  if (!std::strcmp(how, "order")) std::printf("before the kernel\n");
  char* word;
  CHECK_RUNTIME(cudaMalloc(&word, 16));
  CHECK_RUNTIME(cudaMemcpy(word, "a string", 9, cudaMemcpyHostToDevice));
  speak<<<1, 1>>>(42, 2.5, word);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  std::printf("after the synchronize\n");
  std::fflush(stdout);
  if (!std::strcmp(how, "assert")) {
    fail<<<1, 1>>>(1);
    std::printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
  }
  if (!std::strncmp(how, "trap", 4)) std::printf("%s\n", cudaGetErrorName(after_a_trap(how)));
  std::printf("PASSED\n");
  return 0;
}
