// Stream-ordered allocation: reuse in order and across streams, pools of one's own with their attributes, trimming, and
// allocation from a pool by name.
#include "../../../support/cuda_check.hpp"

namespace {

__global__ void fill(unsigned* data, unsigned value, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] = value + i;
}
__global__ void add(unsigned* to, const unsigned* from, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] += from[i];
}

constexpr unsigned kCount = 100000, kBlocks = (kCount + 255) / 256;
constexpr size_t kBytes = kCount * sizeof(unsigned);

void in_order(cudaStream_t stream) {
  unsigned* total;
  CHECK_RUNTIME(cudaMallocAsync(&total, kBytes, stream));
  CHECK_RUNTIME(cudaMemsetAsync(total, 0, kBytes, stream));
  for (unsigned round = 0; round < 20; ++round) {
    unsigned* scratch;
    CHECK_RUNTIME(cudaMallocAsync(&scratch, kBytes, stream));
    fill<<<kBlocks, 256, 0, stream>>>(scratch, round, kCount);
    add<<<kBlocks, 256, 0, stream>>>(total, scratch, kCount);
    CHECK_RUNTIME(cudaFreeAsync(scratch, stream));
  }
  std::vector<unsigned> host(kCount);
  CHECK_RUNTIME(cudaMemcpyAsync(host.data(), total, kBytes, cudaMemcpyDeviceToHost, stream));
  CHECK_RUNTIME(cudaFreeAsync(total, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  for (unsigned i = 0; i < kCount; ++i) EXPECT(host[i] == 190 + 20 * i);
}

// Allocated on one stream, used and freed on another that waits by an event.
void across_streams(cudaStream_t first, cudaStream_t second) {
  unsigned* data;
  cudaEvent_t ready;
  CHECK_RUNTIME(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
  CHECK_RUNTIME(cudaMallocAsync(&data, kBytes, first));
  fill<<<kBlocks, 256, 0, first>>>(data, 7, kCount);
  CHECK_RUNTIME(cudaEventRecord(ready, first));
  CHECK_RUNTIME(cudaStreamWaitEvent(second, ready, 0));
  add<<<kBlocks, 256, 0, second>>>(data, data, kCount);
  std::vector<unsigned> host(kCount);
  CHECK_RUNTIME(cudaMemcpyAsync(host.data(), data, kBytes, cudaMemcpyDeviceToHost, second));
  CHECK_RUNTIME(cudaFreeAsync(data, second));
  CHECK_RUNTIME(cudaStreamSynchronize(second));
  for (unsigned i = 0; i < kCount; ++i) EXPECT(host[i] == 2 * (7 + i));
  CHECK_RUNTIME(cudaEventDestroy(ready));
}

uint64_t attribute(cudaMemPool_t pool, cudaMemPoolAttr name) {
  uint64_t value = 0;
  CHECK_RUNTIME(cudaMemPoolGetAttribute(pool, name, &value));
  return value;
}

void own_pool(cudaStream_t stream) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, 0};
  cudaMemPool_t pool;
  CHECK_RUNTIME(cudaMemPoolCreate(&pool, &properties));
  uint64_t keep = UINT64_MAX;
  CHECK_RUNTIME(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
  EXPECT(attribute(pool, cudaMemPoolAttrReleaseThreshold) == keep);
  EXPECT(attribute(pool, cudaMemPoolAttrUsedMemCurrent) == 0);
  unsigned* data;
  CHECK_RUNTIME(cudaMallocFromPoolAsync(&data, kBytes, pool, stream));
  fill<<<kBlocks, 256, 0, stream>>>(data, 1, kCount);
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  EXPECT(attribute(pool, cudaMemPoolAttrUsedMemCurrent) >= kBytes);
  EXPECT(attribute(pool, cudaMemPoolAttrReservedMemCurrent) >= kBytes);
  std::vector<unsigned> host(kCount);
  CHECK_RUNTIME(cudaMemcpy(host.data(), data, kBytes, cudaMemcpyDeviceToHost));
  for (unsigned i = 0; i < kCount; ++i) EXPECT(host[i] == 1 + i);
  CHECK_RUNTIME(cudaFreeAsync(data, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  EXPECT(attribute(pool, cudaMemPoolAttrUsedMemCurrent) == 0);
  EXPECT(attribute(pool, cudaMemPoolAttrUsedMemHigh) >= kBytes);
  CHECK_RUNTIME(cudaMemPoolTrimTo(pool, 0));
  EXPECT(attribute(pool, cudaMemPoolAttrReservedMemCurrent) == 0);

  // As the device's pool it serves allocations that name none.
  cudaMemPool_t before, now;
  CHECK_RUNTIME(cudaDeviceGetMemPool(&before, 0));
  CHECK_RUNTIME(cudaDeviceSetMemPool(0, pool));
  CHECK_RUNTIME(cudaDeviceGetMemPool(&now, 0));
  EXPECT(now == pool && before != pool);
  CHECK_RUNTIME(cudaMallocAsync(&data, kBytes, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  EXPECT(attribute(pool, cudaMemPoolAttrUsedMemCurrent) >= kBytes);
  CHECK_RUNTIME(cudaFree(data));
  CHECK_RUNTIME(cudaDeviceSetMemPool(0, before));
  CHECK_RUNTIME(cudaMemPoolDestroy(pool));
}

}  // namespace

int main() {
  int pools = 0;
  CHECK_RUNTIME(cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, 0));
  EXPECT(pools == 1);
  cudaStream_t first, second;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  in_order(first);
  across_streams(first, second);
  own_pool(first);
  CHECK_RUNTIME(cudaStreamDestroy(first));
  CHECK_RUNTIME(cudaStreamDestroy(second));
  std::printf("PASSED\n");
  return 0;
}
