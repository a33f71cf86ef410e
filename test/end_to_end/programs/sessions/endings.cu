// Ends in the way of its argument, with memory, streams and work in use.
#include <cuda_runtime.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "../../../../examples/check.hpp"

__global__ void touch(int* data) { data[threadIdx.x] = int(threadIdx.x); }

int main(int argc, char** argv) {
  const char* how = argc > 1 ? argv[1] : "return";
  int* data;
  cudaStream_t stream;
  CHECK_RUNTIME(cudaMalloc(&data, 1 << 20));
  CHECK_RUNTIME(cudaStreamCreate(&stream));
  touch<<<1, 64, 0, stream>>>(data);
  CHECK_RUNTIME(cudaGetLastError());
  std::printf("ending by %s\n", how);
  std::fflush(stdout);
  if (!std::strcmp(how, "exit")) std::exit(7);
  if (!std::strcmp(how, "_exit")) _exit(8);
  if (!std::strcmp(how, "abort")) std::abort();
  if (!std::strcmp(how, "sigterm")) raise(SIGTERM);
  if (!std::strcmp(how, "sigkill")) raise(SIGKILL);
  if (!std::strcmp(how, "segv")) *static_cast<volatile int*>(nullptr) = 1;
  return 9;
}
