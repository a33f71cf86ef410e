// Memory that another device can access: of a pool, mapped, managed; and events and streams of the other device. With
// one device the same calls name it twice.
#include <cuda.h>

#include "../../../support/cuda_check.hpp"

namespace {

constexpr unsigned kCount = 1 << 14, kThreads = 128;
constexpr size_t kBytes = kCount * sizeof(unsigned);

__global__ void fill(unsigned* out, unsigned seed) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kCount) out[i] = i * 2654435769u + seed;
}

__global__ void add(unsigned* to, const unsigned* from) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kCount) to[i] += from[i];
}

constexpr unsigned kBlocks = kCount / kThreads;

int first = 0, other = 0;
cudaStream_t streams[2];

void on(int device) { CHECK_RUNTIME(cudaSetDevice(device)); }

void expect(const unsigned* memory, unsigned seed, unsigned times) {
  std::vector<unsigned> back(kCount);
  CHECK_RUNTIME(cudaMemcpy(back.data(), memory, kBytes, cudaMemcpyDefault));
  for (unsigned i = 0; i < kCount; ++i) EXPECT(back[i] == (i * 2654435769u + seed) * times);
}

// The first device fills its memory, the other adds these values to its own, after an event of the first one.
void fill_and_add(unsigned* far, unsigned* near, unsigned seed, cudaEvent_t filled) {
  on(first);
  fill<<<kBlocks, kThreads, 0, streams[0]>>>(far, seed);
  CHECK_RUNTIME(cudaGetLastError());
  CHECK_RUNTIME(cudaEventRecord(filled, streams[0]));
  on(other);
  CHECK_RUNTIME(cudaMemsetAsync(near, 0, kBytes, streams[1]));
  CHECK_RUNTIME(cudaStreamWaitEvent(streams[1], filled, 0));
  add<<<kBlocks, kThreads, 0, streams[1]>>>(near, far);
  add<<<kBlocks, kThreads, 0, streams[1]>>>(near, far);
  CHECK_RUNTIME(cudaGetLastError());
  CHECK_RUNTIME(cudaStreamSynchronize(streams[1]));
  expect(near, seed, 2);
}

void pools(unsigned* near, cudaEvent_t filled) {
  on(first);
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, first};
  cudaMemPool_t pool;
  CHECK_RUNTIME(cudaMemPoolCreate(&pool, &properties));
  cudaMemAccessDesc access{{cudaMemLocationTypeDevice, other}, cudaMemAccessFlagsProtReadWrite};
  CHECK_RUNTIME(cudaMemPoolSetAccess(pool, &access, 1));
  cudaMemAccessFlags flags{};
  CHECK_RUNTIME(cudaMemPoolGetAccess(&flags, pool, &access.location));
  EXPECT(flags == cudaMemAccessFlagsProtReadWrite);
  unsigned* far;
  CHECK_RUNTIME(cudaMallocFromPoolAsync(&far, kBytes, pool, streams[0]));
  fill_and_add(far, near, 3, filled);
  on(first);
  CHECK_RUNTIME(cudaFreeAsync(far, streams[0]));
  CHECK_RUNTIME(cudaStreamSynchronize(streams[0]));
  CHECK_RUNTIME(cudaMemPoolDestroy(pool));
}

void mappings(unsigned* near, cudaEvent_t filled) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, first};
  size_t granularity = 0;
  CHECK_DRIVER(cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  const size_t bytes = (kBytes + granularity - 1) / granularity * granularity;
  CUmemGenericAllocationHandle handle;
  CUdeviceptr address;
  CHECK_DRIVER(cuMemCreate(&handle, bytes, &properties, 0));
  CHECK_DRIVER(cuMemAddressReserve(&address, bytes, 0, 0, 0));
  CHECK_DRIVER(cuMemMap(address, bytes, 0, handle, 0));
  CUmemAccessDesc access[2] = {{{CU_MEM_LOCATION_TYPE_DEVICE, first}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
                               {{CU_MEM_LOCATION_TYPE_DEVICE, other}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
  CHECK_DRIVER(cuMemSetAccess(address, bytes, access, first == other ? 1 : 2));
  fill_and_add(reinterpret_cast<unsigned*>(address), near, 5, filled);
  CHECK_DRIVER(cuMemUnmap(address, bytes));
  CHECK_DRIVER(cuMemAddressFree(address, bytes));
  CHECK_DRIVER(cuMemRelease(handle));
}

void managed(unsigned* near, cudaEvent_t filled) {
  unsigned* far;
  on(first);
  CHECK_RUNTIME(cudaMallocManaged(&far, kBytes));
  fill_and_add(far, near, 7, filled);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  for (unsigned i = 0; i < kCount; ++i) EXPECT(far[i] == i * 2654435769u + 7);
  CHECK_RUNTIME(cudaFree(far));
}

void pinned(unsigned* near, cudaEvent_t filled) {
  unsigned* far;
  on(first);
  CHECK_RUNTIME(cudaHostAlloc(&far, kBytes, cudaHostAllocPortable | cudaHostAllocMapped));
  fill_and_add(far, near, 9, filled);
  CHECK_RUNTIME(cudaFreeHost(far));
}

// An address's attributes name its device, and a block can be freed with any current device.
void attributes() {
  unsigned* far;
  on(first);
  CHECK_RUNTIME(cudaMalloc(&far, kBytes));
  on(other);
  cudaPointerAttributes about{};
  CHECK_RUNTIME(cudaPointerGetAttributes(&about, far));
  EXPECT(about.type == cudaMemoryTypeDevice && about.device == first && about.devicePointer == far);
  CHECK_RUNTIME(cudaFree(far));
}

}  // namespace

int main() {
  int devices = 0;
  CHECK_RUNTIME(cudaGetDeviceCount(&devices));
  other = devices > 1 ? 1 : 0;
  for (int i = 0; i < 2; ++i) {
    on(i == 0 ? first : other);
    CHECK_RUNTIME(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
  }
  unsigned* near;
  CHECK_RUNTIME(cudaMalloc(&near, kBytes));
  on(first);
  cudaEvent_t filled;
  CHECK_RUNTIME(cudaEventCreateWithFlags(&filled, cudaEventDisableTiming));
  int can = 1;  // the other's kernels reach the first one's memory
  if (other != first) CHECK_RUNTIME(cudaDeviceCanAccessPeer(&can, other, first));
  attributes();
  pinned(near, filled);
  managed(near, filled);
  if (can) {
    pools(near, filled);
    mappings(near, filled);
  }
  std::printf("%d devices\nPASSED\n", devices > 1 ? 2 : 1);
  return 0;
}
