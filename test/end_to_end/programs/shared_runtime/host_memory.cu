// Host memory of every kind in copies both ways: pageable, pinned, write-combined and registered; the runtime's
// attributes of each.
#include <algorithm>

#include "../../../support/cuda_check.hpp"

namespace {

constexpr size_t kCount = 300000, kBytes = kCount * sizeof(float);

__global__ void twice(float* data) {
  const size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
  if (i < kCount) data[i] *= 2;
}

// There and back through the device, by blocking and by asynchronous copies.
void there_and_back(float* from, float* to, const char* kind) {
  const auto values = check::Random(1).values<float>(kCount);
  float* device;
  cudaStream_t stream;
  CHECK_RUNTIME(cudaMalloc(&device, kBytes));
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (const bool asynchronous : {false, true}) {
    std::copy(values.begin(), values.end(), from);
    if (to != from) std::fill(to, to + kCount, 0.0f);
    if (asynchronous) {
      CHECK_RUNTIME(cudaMemcpyAsync(device, from, kBytes, cudaMemcpyHostToDevice, stream));
      twice<<<unsigned((kCount + 255) / 256), 256, 0, stream>>>(device);
      CHECK_RUNTIME(cudaMemcpyAsync(to, device, kBytes, cudaMemcpyDefault, stream));
      CHECK_RUNTIME(cudaStreamSynchronize(stream));
    } else {
      CHECK_RUNTIME(cudaMemcpy(device, from, kBytes, cudaMemcpyDefault));
      twice<<<unsigned((kCount + 255) / 256), 256>>>(device);
      CHECK_RUNTIME(cudaMemcpy(to, device, kBytes, cudaMemcpyDeviceToHost));
    }
    for (size_t i = 0; i < kCount; ++i) EXPECT(to[i] == 2 * values[i]);
  }
  CHECK_RUNTIME(cudaStreamDestroy(stream));
  CHECK_RUNTIME(cudaFree(device));
  std::printf("%s: right\n", kind);
}

cudaPointerAttributes attributes_of(const void* pointer) {
  cudaPointerAttributes attributes;
  CHECK_RUNTIME(cudaPointerGetAttributes(&attributes, pointer));
  return attributes;
}

}  // namespace

int main() {
  std::vector<float> pageable(kCount), other(kCount);
  EXPECT(attributes_of(pageable.data()).type == cudaMemoryTypeUnregistered);
  there_and_back(pageable.data(), other.data(), "pageable");

  float *pinned, *combined;
  CHECK_RUNTIME(cudaMallocHost(&pinned, kBytes));
  CHECK_RUNTIME(cudaHostAlloc(&combined, kBytes, cudaHostAllocWriteCombined | cudaHostAllocPortable));
  EXPECT(attributes_of(pinned).type == cudaMemoryTypeHost && attributes_of(pinned + 5).hostPointer == pinned + 5);
  unsigned flags = 0;
  CHECK_RUNTIME(cudaHostGetFlags(&flags, combined));
  EXPECT(flags & cudaHostAllocWriteCombined);
  there_and_back(pinned, pinned, "pinned");
  there_and_back(combined, pinned, "write-combined");
  there_and_back(pageable.data(), pinned, "pageable to pinned");
  CHECK_RUNTIME(cudaFreeHost(combined));
  CHECK_RUNTIME(cudaFreeHost(pinned));
  EXPECT(cudaFreeHost(pinned) == cudaErrorInvalidValue);
  static_cast<void>(cudaGetLastError());

  CHECK_RUNTIME(cudaHostRegister(pageable.data(), kBytes, cudaHostRegisterDefault));
  EXPECT(attributes_of(pageable.data()).type == cudaMemoryTypeHost);
  EXPECT(cudaHostRegister(pageable.data(), kBytes, cudaHostRegisterDefault) == cudaErrorHostMemoryAlreadyRegistered);
  static_cast<void>(cudaGetLastError());
  there_and_back(pageable.data(), other.data(), "registered");
  CHECK_RUNTIME(cudaHostUnregister(pageable.data()));
  EXPECT(cudaHostUnregister(pageable.data()) == cudaErrorHostMemoryNotRegistered);
  static_cast<void>(cudaGetLastError());
  EXPECT(attributes_of(pageable.data()).type == cudaMemoryTypeUnregistered);
  std::printf("PASSED\n");
  return 0;
}
