// fork() after CUDA was initialised: the child gets an error and does not hang, the parent continues.
#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "../../../../examples/check.hpp"

__global__ void twice(int* value) { *value *= 2; }

int main() {
  int *device, value = 21;
  CHECK_RUNTIME(cudaMalloc(&device, sizeof value));
  CHECK_RUNTIME(cudaMemcpy(device, &value, sizeof value, cudaMemcpyHostToDevice));
  pid_t child = fork();
  if (child == 0) {
    void* memory = nullptr;
    cudaError_t error = cudaMalloc(&memory, 16);
    _exit(error == cudaErrorInitializationError ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  twice<<<1, 1>>>(device);
  CHECK_RUNTIME(cudaGetLastError());
  CHECK_RUNTIME(cudaMemcpy(&value, device, sizeof value, cudaMemcpyDeviceToHost));
  bool right = WIFEXITED(status) && WEXITSTATUS(status) == 0 && value == 42;
  std::printf("child status %d, value %d\n%s\n", status, value, right ? "PASSED" : "FAILED");
  return right ? 0 : 1;
}
