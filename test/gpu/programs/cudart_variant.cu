// The runtime's everyday calls in one program, built twice: with the static and with the shared runtime library.
#include "../../support/cuda_check.hpp"

__constant__ float factors[4];
__device__ int counter;

__global__ void scale(const float* in, float* out, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = in[i] * factors[i % 4];
  if (i == 0) atomicAdd(&counter, 1);
}

int main() {
  constexpr unsigned kCount = 10000, kRounds = 5;
  int version = 0, devices = 0;
  CHECK_RUNTIME(cudaRuntimeGetVersion(&version));
  CHECK_RUNTIME(cudaGetDeviceCount(&devices));
  EXPECT(version >= 13000 && devices >= 1);
  const float host_factors[4] = {1, 2, 3, 4};
  CHECK_RUNTIME(cudaMemcpyToSymbol(factors, host_factors, sizeof factors));
  check::Random random(1);
  const auto in = random.values<float>(kCount);
  std::vector<float> expected(kCount);
  for (unsigned i = 0; i < kCount; ++i) expected[i] = in[i] * host_factors[i % 4];
  check::Device<float> device_in(in), device_out(kCount);
  cudaStream_t stream;
  cudaEvent_t begin, end;
  CHECK_RUNTIME(cudaStreamCreate(&stream));
  CHECK_RUNTIME(cudaEventCreate(&begin));
  CHECK_RUNTIME(cudaEventCreate(&end));
  CHECK_RUNTIME(cudaEventRecord(begin, stream));
  for (unsigned round = 0; round < kRounds; ++round)
    scale<<<(kCount + 255) / 256, 256, 0, stream>>>(device_in.get(), device_out.get(), kCount);
  CHECK_RUNTIME(cudaGetLastError());
  CHECK_RUNTIME(cudaEventRecord(end, stream));
  CHECK_RUNTIME(cudaEventSynchronize(end));
  float milliseconds = -1;
  CHECK_RUNTIME(cudaEventElapsedTime(&milliseconds, begin, end));
  EXPECT(milliseconds >= 0);
  check::close("scaled", device_out.host(), expected, 0);
  int count = 0;
  CHECK_RUNTIME(cudaMemcpyFromSymbol(&count, counter, sizeof count));
  EXPECT(count == int(kRounds));
  float* in_stream_order;
  CHECK_RUNTIME(cudaMallocAsync(&in_stream_order, kCount * sizeof(float), stream));
  CHECK_RUNTIME(cudaMemsetAsync(in_stream_order, 0, kCount * sizeof(float), stream));
  CHECK_RUNTIME(cudaFreeAsync(in_stream_order, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  void* nothing = nullptr;
  EXPECT(cudaMalloc(&nothing, size_t(1) << 60) == cudaErrorMemoryAllocation);
  EXPECT(cudaGetLastError() == cudaErrorMemoryAllocation && cudaGetLastError() == cudaSuccess);
  CHECK_RUNTIME(cudaStreamDestroy(stream));
  CHECK_RUNTIME(cudaDeviceSynchronize());
  std::printf("PASSED\n");
}
