// Two streams, one waiting for an event of the other; events measure time.
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

#include "check.hpp"

__global__ void fill(int* data, int value, int count) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) data[i] = value;
}

__global__ void add(int* data, const int* other, int count) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) data[i] += other[i];
}

int main() {
  constexpr int kCount = 1 << 18;
  int *first, *second;
  CHECK_RUNTIME(cudaMalloc(&first, kCount * sizeof(int)));
  CHECK_RUNTIME(cudaMalloc(&second, kCount * sizeof(int)));
  cudaStream_t producer, consumer;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&producer, cudaStreamNonBlocking));
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&consumer, cudaStreamNonBlocking));
  cudaEvent_t start, filled, stop;
  CHECK_RUNTIME(cudaEventCreate(&start));
  CHECK_RUNTIME(cudaEventCreateWithFlags(&filled, cudaEventDisableTiming));
  CHECK_RUNTIME(cudaEventCreate(&stop));

  CHECK_RUNTIME(cudaEventRecord(start, producer));
  fill<<<32, 128, 0, producer>>>(first, 1, kCount);
  CHECK_RUNTIME(cudaGetLastError());
  for (int i = 0; i < 10; ++i) add<<<32, 128, 0, producer>>>(first, first, kCount);
  CHECK_RUNTIME(cudaEventRecord(filled, producer));
  fill<<<32, 128, 0, consumer>>>(second, 5, kCount);
  CHECK_RUNTIME(cudaStreamWaitEvent(consumer, filled, 0));
  add<<<32, 128, 0, consumer>>>(second, first, kCount);
  CHECK_RUNTIME(cudaGetLastError());
  CHECK_RUNTIME(cudaEventRecord(stop, consumer));
  CHECK_RUNTIME(cudaEventSynchronize(stop));
  bool queries = cudaEventQuery(filled) == cudaSuccess && cudaStreamQuery(consumer) == cudaSuccess;

  float milliseconds = -1, untimed = 0;
  CHECK_RUNTIME(cudaEventElapsedTime(&milliseconds, start, stop));
  bool refused = cudaEventElapsedTime(&untimed, filled, stop) == cudaErrorInvalidResourceHandle;
  cudaGetLastError();

  std::vector<int> host(kCount);
  CHECK_RUNTIME(cudaMemcpy(host.data(), second, kCount * sizeof(int), cudaMemcpyDeviceToHost));
  bool values = true;
  for (int value : host) values &= value == 5 + 1024;
  CHECK_RUNTIME(cudaEventDestroy(start));
  CHECK_RUNTIME(cudaEventDestroy(filled));
  CHECK_RUNTIME(cudaEventDestroy(stop));
  CHECK_RUNTIME(cudaStreamDestroy(producer));
  CHECK_RUNTIME(cudaStreamDestroy(consumer));
  CHECK_RUNTIME(cudaFree(first));
  CHECK_RUNTIME(cudaFree(second));

  std::printf("values %s, queries %s, elapsed time %s, untimed event %s\n", values ? "right" : "wrong",
              queries ? "right" : "wrong", milliseconds >= 0 ? "measured" : "wrong", refused ? "refused" : "accepted");
  bool right = values && queries && milliseconds >= 0 && refused;
  std::printf("%s\n", right ? "PASSED" : "FAILED");
  return right ? 0 : 1;
}
