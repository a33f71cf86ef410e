// Limits, cache preferences, occupancy and the attributes of functions: set values are read back, and large shared
// memory works once allowed.
#include <utility>

#include "../../../support/cuda_check.hpp"

namespace {

__global__ void reverse(int* data, int count) {
  extern __shared__ int shared[];
  for (int i = threadIdx.x; i < count; i += blockDim.x) shared[i] = data[i];
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += blockDim.x) data[i] = shared[count - 1 - i];
}

__global__ void __launch_bounds__(128) small(float* data) {
  __shared__ float partial[128];
  partial[threadIdx.x] = data[threadIdx.x];
  __syncthreads();
  data[threadIdx.x] = partial[127 - threadIdx.x];
}

void limits() {
  for (const auto& [limit, bytes] :
       {std::pair{cudaLimitStackSize, size_t(4096)}, std::pair{cudaLimitPrintfFifoSize, size_t(2 << 20)},
        std::pair{cudaLimitMallocHeapSize, size_t(16 << 20)}}) {
    size_t before = 0, after = 0;
    CHECK_RUNTIME(cudaDeviceGetLimit(&before, limit));
    EXPECT(before > 0);
    CHECK_RUNTIME(cudaDeviceSetLimit(limit, bytes));
    CHECK_RUNTIME(cudaDeviceGetLimit(&after, limit));
    EXPECT(after >= bytes);
  }
}

void cache_preferences() {
  cudaFuncCache cache;
  CHECK_RUNTIME(cudaDeviceSetCacheConfig(cudaFuncCachePreferShared));
  CHECK_RUNTIME(cudaDeviceGetCacheConfig(&cache));
  CHECK_RUNTIME(cudaFuncSetCacheConfig(reverse, cudaFuncCachePreferL1));
  CHECK_RUNTIME(cudaDeviceSetCacheConfig(cudaFuncCachePreferNone));
}

void function_attributes() {
  cudaFuncAttributes attributes;
  CHECK_RUNTIME(cudaFuncGetAttributes(&attributes, small));
  EXPECT(attributes.sharedSizeBytes == 128 * sizeof(float));
  EXPECT(attributes.maxThreadsPerBlock == 128 && attributes.numRegs > 0 && attributes.ptxVersion >= 70);
  CHECK_RUNTIME(cudaFuncGetAttributes(&attributes, reverse));
  EXPECT(attributes.sharedSizeBytes == 0 && attributes.maxThreadsPerBlock == 1024);
}

void large_shared_memory() {
  int most = 0;
  CHECK_RUNTIME(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  EXPECT(most > 48 << 10);
  const int count = most / int(sizeof(int));
  std::vector<int> host(count);
  for (int i = 0; i < count; ++i) host[i] = i;
  check::Device<int> data(host);
  reverse<<<1, 256, most>>>(data.get(), count);
  EXPECT(cudaGetLastError() == cudaErrorInvalidValue);  // not allowed yet
  CHECK_RUNTIME(cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
  CHECK_RUNTIME(
      cudaFuncSetAttribute(reverse, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
  cudaFuncAttributes attributes;
  CHECK_RUNTIME(cudaFuncGetAttributes(&attributes, reverse));
  EXPECT(attributes.maxDynamicSharedSizeBytes == most);
  reverse<<<1, 256, most>>>(data.get(), count);
  CHECK_RUNTIME(cudaGetLastError());
  const auto result = data.host();
  for (int i = 0; i < count; ++i) EXPECT(result[i] == count - 1 - i);
  EXPECT(cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, most + 1) == cudaErrorInvalidValue);
  static_cast<void>(cudaGetLastError());
}

void occupancy() {
  int few = 0, many = 0, grid = 0, block = 0;
  CHECK_RUNTIME(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&many, small, 128, 0));
  CHECK_RUNTIME(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&few, small, 128, 40 << 10));
  EXPECT(many >= 1 && few >= 1 && few <= many);
  CHECK_RUNTIME(cudaOccupancyMaxPotentialBlockSize(&grid, &block, small, 0, 0));
  EXPECT(block > 0 && block <= 128 && grid >= 1);
  size_t left = 0;
  CHECK_RUNTIME(cudaOccupancyAvailableDynamicSMemPerBlock(&left, small, 1, 128));
  EXPECT(left > 0);
}

}  // namespace

int main() {
  limits();
  cache_preferences();
  function_attributes();
  large_shared_memory();
  occupancy();
  std::printf("PASSED\n");
  return 0;
}
