// Eight threads at once, each with a stream and memory of its own, in one context.
#include <cuda_runtime.h>

#include <cstdio>
#include <thread>
#include <vector>

#include "../../../../examples/check.hpp"

__global__ void mix(unsigned* data, int count, unsigned seed) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] = data[i] * 1664525u + seed;
}

static bool work(unsigned seed) {
  constexpr int kCount = 2000, kRounds = 60;
  std::vector<unsigned> host(kCount), expected(kCount);
  for (int i = 0; i < kCount; ++i) expected[i] = host[i] = seed + unsigned(i);
  cudaStream_t stream;
  cudaEvent_t event;
  unsigned* device;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK_RUNTIME(cudaEventCreate(&event));
  CHECK_RUNTIME(cudaMalloc(&device, kCount * sizeof(unsigned)));
  CHECK_RUNTIME(cudaMemcpyAsync(device, host.data(), kCount * sizeof(unsigned), cudaMemcpyHostToDevice, stream));
  for (int round = 0; round < kRounds; ++round) {
    mix<<<(kCount + 127) / 128, 128, 0, stream>>>(device, kCount, seed + unsigned(round));
    CHECK_RUNTIME(cudaGetLastError());
    for (unsigned& value : expected) value = value * 1664525u + seed + unsigned(round);
    if (round % 10 == 0) {
      CHECK_RUNTIME(cudaEventRecord(event, stream));
      while (cudaEventQuery(event) == cudaErrorNotReady) std::this_thread::yield();
    }
  }
  CHECK_RUNTIME(cudaMemcpyAsync(host.data(), device, kCount * sizeof(unsigned), cudaMemcpyDeviceToHost, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  CHECK_RUNTIME(cudaFree(device));
  CHECK_RUNTIME(cudaEventDestroy(event));
  CHECK_RUNTIME(cudaStreamDestroy(stream));
  return host == expected;
}

int main() {
  constexpr int kThreads = 8;
  bool right[kThreads] = {};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back([&, i] { right[i] = work(1000u * unsigned(i + 1)); });
  bool all = true;
  for (int i = 0; i < kThreads; ++i) {
    threads[i].join();
    all &= right[i];
  }
  std::printf("%s\n", all ? "PASSED" : "FAILED");
  return all ? 0 : 1;
}
