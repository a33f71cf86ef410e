// Goes through the states of a session, or stays in the one of its argument, until the session ends. Uninterrupted it
// ends with PASSED; if a call fails it prints the error's name, checks that later calls fail at once, and exits with 3.
#include <cuda_runtime.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

__global__ void add(int* data, int count, int value) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] += value;
}
__global__ void endless(volatile int* word) {
  while (*word != -1) {}
}

namespace {

constexpr size_t kBytes = size_t(8) << 20;

void must(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("%s\n", cudaGetErrorName(error));
  void* more = nullptr;
  if (cudaMalloc(&more, 16) == cudaSuccess) std::printf("an allocation succeeded after the end\n");
  std::fflush(stdout);
  _exit(3);
}

// Nothing is ever written to its standard input.
void stay(void*) {
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) {}
}
void count(void* calls) { ++*static_cast<int*>(calls); }

void steps(int* device) {
  std::vector<int> host(kBytes / sizeof(int), 1), back(host.size());
  int* pinned = nullptr;
  int calls = 0;
  must(cudaMallocHost(&pinned, kBytes));
  must(cudaMemcpy(device, host.data(), kBytes, cudaMemcpyHostToDevice));
  add<<<unsigned(host.size() / 256), 256>>>(device, int(host.size()), 1);
  must(cudaGetLastError());
  must(cudaMemcpy(back.data(), device, kBytes, cudaMemcpyDeviceToHost));
  must(cudaMemcpyAsync(pinned, device, kBytes, cudaMemcpyDeviceToHost, nullptr));
  must(cudaLaunchHostFunc(nullptr, count, &calls));
  must(cudaDeviceSynchronize());
  must(cudaFree(device));
  bool right = back.front() == 2 && back.back() == 2 && pinned[0] == 2 && calls == 1;
  std::printf(right ? "PASSED\n" : "FAILED\n");
}

}  // namespace

int main(int argc, char** argv) {
  const char* where = argc > 1 ? argv[1] : "steps";
  int* device = nullptr;
  must(cudaMalloc(&device, kBytes));
  must(cudaMemset(device, 0, kBytes));
  if (!std::strcmp(where, "steps")) return steps(device), 0;
  if (!std::strcmp(where, "waits")) endless<<<1, 1>>>(device);
  if (!std::strcmp(where, "host_function")) must(cudaLaunchHostFunc(nullptr, stay, nullptr));
  must(cudaDeviceSynchronize());
  return 9;
}
