// An ordinary program's use of the runtime, on the software device.
#include <cstring>
#include <vector>

#include "check.h"

__device__ int counter = 1;
__constant__ float factors[4];
__managed__ int shared_value = 7;

__global__ void vector_add(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    c[i] = a[i] + b[i];
  }
}

__global__ void count(int n) {
  atomicAdd(&counter, n);
  if (threadIdx.x == 0) {
    ++shared_value;
  }
}

__global__ void reverse_scaled(float* values) {
  extern __shared__ float scratch[];
  scratch[threadIdx.x] = values[threadIdx.x] * factors[threadIdx.x % 4];
  __syncthreads();
  values[threadIdx.x] = scratch[blockDim.x - 1 - threadIdx.x];
}

__global__ void out_of_bounds(int* p) { p[1 << 28] = 1; }

static void vectors() {
  constexpr int n = 50000;
  std::vector<float> a(n), b(n), c(n);
  for (int i = 0; i < n; ++i) {
    a[i] = static_cast<float>(i);
    b[i] = 2.0f * i;
  }
  float *da, *db, *dc;
  CUDA(cudaMalloc(&da, n * sizeof(float)));
  CUDA(cudaMalloc(&db, n * sizeof(float)));
  CUDA(cudaMalloc(&dc, n * sizeof(float)));
  CUDA(cudaMemcpy(da, a.data(), n * sizeof(float), cudaMemcpyHostToDevice));
  CUDA(cudaMemcpy(db, b.data(), n * sizeof(float), cudaMemcpyHostToDevice));
  vector_add<<<(n + 255) / 256, 256>>>(da, db, dc, n);
  CUDA(cudaGetLastError());
  CUDA(cudaMemcpy(c.data(), dc, n * sizeof(float), cudaMemcpyDeviceToHost));
  for (int i = 0; i < n; ++i) {
    CHECK(c[i] == 3.0f * i);
  }
  CUDA(cudaFree(da));
  CUDA(cudaFree(db));
  CUDA(cudaFree(dc));
}

static void variables() {
  count<<<2, 32>>>(2);
  CUDA(cudaDeviceSynchronize());
  int host = 0;
  CUDA(cudaMemcpyFromSymbol(&host, counter, sizeof host));
  CHECK(host == 1 + 2 * 64);
  CHECK(shared_value >= 8);
}

static void streams_and_events() {
  const float factors_host[4] = {1, 2, 3, 4};
  CUDA(cudaMemcpyToSymbol(factors, factors_host, sizeof factors_host));
  std::vector<float> values(32, 1.0f);
  float* device = nullptr;
  cudaStream_t stream;
  cudaEvent_t start, end;
  CUDA(cudaMalloc(&device, 32 * sizeof(float)));
  CUDA(cudaStreamCreate(&stream));
  CUDA(cudaEventCreate(&start));
  CUDA(cudaEventCreate(&end));
  CUDA(cudaMemcpyAsync(device, values.data(), 32 * sizeof(float), cudaMemcpyHostToDevice, stream));
  CUDA(cudaEventRecord(start, stream));
  reverse_scaled<<<1, 32, 32 * sizeof(float), stream>>>(device);
  CUDA(cudaEventRecord(end, stream));
  CUDA(cudaEventSynchronize(end));
  float milliseconds = -1;
  CUDA(cudaEventElapsedTime(&milliseconds, start, end));
  CHECK(milliseconds >= 0);
  CUDA(cudaMemcpyAsync(values.data(), device, 32 * sizeof(float), cudaMemcpyDeviceToHost, stream));
  CUDA(cudaStreamSynchronize(stream));
  CHECK(values[0] == 4 && values[1] == 3 && values[31] == 1);
  CUDA(cudaFree(device));
  CUDA(cudaStreamDestroy(stream));
}

static void queries() {
  int devices = 0;
  CUDA(cudaGetDeviceCount(&devices));
  CHECK(devices == 2);
  cudaDeviceProp properties;
  CUDA(cudaGetDeviceProperties(&properties, 1));
  CHECK(properties.major == 9 && properties.minor == 0);
  CHECK(std::strcmp(properties.name, "gpuwire software device") == 0);
  cudaFuncAttributes attributes;
  CUDA(cudaFuncGetAttributes(&attributes, vector_add));
  CHECK(attributes.maxThreadsPerBlock == 1024);
  int grid = 0, block = 0;
  CUDA(cudaOccupancyMaxPotentialBlockSize(&grid, &block, vector_add, 0, 0));
  CHECK(grid > 0 && block > 0);
  int own = 0;
  cudaPointerAttributes pointer;
  CUDA(cudaPointerGetAttributes(&pointer, &own));
  CHECK(pointer.type == cudaMemoryTypeUnregistered);
  void* host = nullptr;
  CUDA(cudaMallocHost(&host, 64));
  CUDA(cudaPointerGetAttributes(&pointer, host));
  CHECK(pointer.type == cudaMemoryTypeHost && pointer.devicePointer == host);
  CUDA(cudaFreeHost(host));
}

static void second_device() {
  CUDA(cudaSetDevice(1));
  int host = 0;
  CUDA(cudaMemcpyFromSymbol(&host, counter, sizeof host));
  CHECK(host == 1);
  CUDA(cudaSetDevice(0));
}

static void errors() {
  reverse_scaled<<<1, 2048>>>(nullptr);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaSuccess);
  reverse_scaled<<<1, 32, 100000>>>(nullptr);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  int* device = nullptr;
  CUDA(cudaMalloc(&device, 4));
  out_of_bounds<<<1, 1>>>(device);
  CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
  CHECK(cudaGetLastError() == cudaErrorIllegalAddress);
  CHECK(cudaMalloc(&device, 4) == cudaErrorIllegalAddress);
  // As on real GPUs, the process gets no new context, neither on this device nor on the other one, which cudart tries
  // by itself.
  CUDA(cudaDeviceReset());
  CHECK(cudaMalloc(&device, 4) == cudaErrorDevicesUnavailable);
}

int main() {
  vectors();
  variables();
  streams_and_events();
  queries();
  second_device();
  errors();
  std::puts("passed");
  return 0;
}
