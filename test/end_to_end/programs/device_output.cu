// usage: device_output [order|assert|trap]: printf of device code comes out on the client before the synchronize
// returns; a failed assert is an error, with its text on stderr; a trap is one after what was printed before it. order:
// what the program has printed and not flushed comes first, also when stdout is no terminal.
#include <cassert>
#include <cstdio>
#include <cstring>

#include <cuda_runtime.h>

#include "../../../examples/check.hpp"

__global__ void speak(int value, double fraction, const char* word) {
  printf("kernel says %d, %.3f and %s\n", value, fraction, word);
}
__global__ void fail(int value) { assert(value == 0 && "the value is zero"); }
__global__ void stop() {
  printf("before the trap\n");
  __trap();
}

int main(int argc, char** argv) {
  if (argc > 1 && !std::strcmp(argv[1], "order")) std::printf("before the kernel\n");
  char* word;
  CHECK_RUNTIME(cudaMalloc(&word, 16));
  CHECK_RUNTIME(cudaMemcpy(word, "a string", 9, cudaMemcpyHostToDevice));
  speak<<<1, 1>>>(42, 2.5, word);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  std::printf("after the synchronize\n");
  std::fflush(stdout);
  if (argc > 1 && !std::strcmp(argv[1], "assert")) {
    fail<<<1, 1>>>(1);
    std::printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
  }
  if (argc > 1 && !std::strcmp(argv[1], "trap")) {
    stop<<<1, 1>>>();
    std::printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
  }
  std::printf("PASSED\n");
  return 0;
}
