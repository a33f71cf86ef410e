// Pinned host memory and asynchronous copies, in four chunks over two streams.
#include <cuda_runtime.h>

#include <cstdio>

#include "check.hpp"

__global__ void square(float* data, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] *= data[i];
}

int main() {
  constexpr int kChunks = 4, kChunk = 1 << 17, kCount = kChunks * kChunk;
  float *host, *device;
  CHECK_RUNTIME(cudaMallocHost(&host, kCount * sizeof(float)));
  CHECK_RUNTIME(cudaMalloc(&device, kCount * sizeof(float)));
  for (int i = 0; i < kCount; ++i) host[i] = float(i % 1000);

  cudaStream_t streams[2];
  for (auto& stream : streams) CHECK_RUNTIME(cudaStreamCreate(&stream));
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    cudaStream_t stream = streams[chunk % 2];
    float *host_chunk = host + chunk * kChunk, *device_chunk = device + chunk * kChunk;
    CHECK_RUNTIME(cudaMemcpyAsync(device_chunk, host_chunk, kChunk * sizeof(float), cudaMemcpyHostToDevice, stream));
    square<<<(kChunk + 255) / 256, 256, 0, stream>>>(device_chunk, kChunk);
    CHECK_RUNTIME(cudaGetLastError());
    CHECK_RUNTIME(cudaMemcpyAsync(host_chunk, device_chunk, kChunk * sizeof(float), cudaMemcpyDeviceToHost, stream));
  }
  for (auto& stream : streams) CHECK_RUNTIME(cudaStreamSynchronize(stream));

  cudaPointerAttributes pinned, remote;
  CHECK_RUNTIME(cudaPointerGetAttributes(&pinned, host));
  CHECK_RUNTIME(cudaPointerGetAttributes(&remote, device));
  bool attributes = pinned.type == cudaMemoryTypeHost && remote.type == cudaMemoryTypeDevice;

  bool values = true;
  for (int i = 0; i < kCount; ++i) values &= host[i] == float(i % 1000) * float(i % 1000);
  for (auto& stream : streams) CHECK_RUNTIME(cudaStreamDestroy(stream));
  CHECK_RUNTIME(cudaFree(device));
  CHECK_RUNTIME(cudaFreeHost(host));
  std::printf("values %s, pointer attributes %s\n", values ? "right" : "wrong", attributes ? "right" : "wrong");
  std::printf("%s\n", values && attributes ? "PASSED" : "FAILED");
  return values && attributes ? 0 : 1;
}
