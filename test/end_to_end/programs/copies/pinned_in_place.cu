// Pinned allocations of every kind of use: copied from and to, blocking and in streams, with kernels that write them
// while the host looks on, given back and taken anew. The sizes are those of docs/performance.md's tables, smaller with
// an argument "small". Ends with PASSED.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../../../support/cuda_check.hpp"

__global__ void add_one(uint32_t* values, size_t count) {
  size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
  if (i < count) values[i] += 1;
}

int copies(size_t count) {
  size_t bytes = count * sizeof(uint32_t);
  uint32_t *source = nullptr, *target = nullptr, *device = nullptr;
  CHECK_RUNTIME(cudaMallocHost(&source, bytes));
  CHECK_RUNTIME(cudaHostAlloc(&target, bytes, cudaHostAllocPortable));
  CHECK_RUNTIME(cudaMalloc(&device, bytes));
  for (size_t i = 0; i < count; ++i) source[i] = uint32_t(i * 2654435761u);
  CHECK_RUNTIME(cudaMemcpy(device, source, bytes, cudaMemcpyHostToDevice));
  // The copy is over: later writes of the program are not in it.
  source[0] = 7;
  CHECK_RUNTIME(cudaMemcpy(target, device, bytes, cudaMemcpyDeviceToHost));
  EXPECT(target[0] == 0);
  EXPECT(std::memcmp(target + 1, source + 1, bytes - sizeof(uint32_t)) == 0);
  cudaStream_t stream;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::memset(target, 0, bytes);
  CHECK_RUNTIME(cudaMemcpyAsync(device, source, bytes, cudaMemcpyHostToDevice, stream));
  add_one<<<unsigned((count + 255) / 256), 256, 0, stream>>>(device, count);
  CHECK_RUNTIME(cudaMemcpyAsync(target, device, bytes, cudaMemcpyDeviceToHost, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  for (size_t i = 0; i < count; ++i) EXPECT(target[i] == source[i] + 1);
  // The same from and to pageable memory, and with both ends of a part.
  std::vector<uint32_t> pageable(count);
  CHECK_RUNTIME(cudaMemcpy(pageable.data(), device, bytes, cudaMemcpyDeviceToHost));
  EXPECT(std::memcmp(pageable.data(), target, bytes) == 0);
  if (count >= 16) {
    CHECK_RUNTIME(cudaMemcpyAsync(device + 3, source + 1, 5 * sizeof(uint32_t), cudaMemcpyHostToDevice, stream));
    CHECK_RUNTIME(cudaMemcpyAsync(target + 2, device + 3, 5 * sizeof(uint32_t), cudaMemcpyDeviceToHost, stream));
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
    EXPECT(std::memcmp(target + 2, source + 1, 5 * sizeof(uint32_t)) == 0);
  }
  // An invalid address: the call returns the error, as with pageable memory.
  EXPECT(cudaMemcpy(reinterpret_cast<void*>(0x40), source, sizeof(uint32_t), cudaMemcpyHostToDevice) ==
         cudaErrorInvalidValue);
  EXPECT(cudaMemcpy(target, reinterpret_cast<void*>(0x40), sizeof(uint32_t), cudaMemcpyDeviceToHost) ==
         cudaErrorInvalidValue);
  cudaGetLastError();
  CHECK_RUNTIME(cudaStreamDestroy(stream));
  CHECK_RUNTIME(cudaFree(device));
  CHECK_RUNTIME(cudaFreeHost(source));
  CHECK_RUNTIME(cudaFreeHost(target));
  return 0;
}

// A kernel works on the program's own pages.
int reached_by_kernels() {
  constexpr size_t kCount = 100'000;
  uint32_t *values = nullptr, *seen_by_device = nullptr;
  CHECK_RUNTIME(cudaHostAlloc(&values, kCount * sizeof(uint32_t), cudaHostAllocMapped));
  CHECK_RUNTIME(cudaHostGetDevicePointer(&seen_by_device, values, 0));
  for (uint32_t round = 1; round <= 3; ++round) {
    for (size_t i = 0; i < kCount; i += 1000) values[i] = uint32_t(i) * round;
    add_one<<<(kCount + 255) / 256, 256>>>(seen_by_device, kCount);
    CHECK_RUNTIME(cudaDeviceSynchronize());
    for (size_t i = 0; i < kCount; i += 1000) EXPECT(values[i] == uint32_t(i) * round + 1);
    EXPECT(values[1] == round);
  }
  CHECK_RUNTIME(cudaFreeHost(values));
  return 0;
}

// Many, in an order that leaves gaps.
int taken_and_given_back() {
  std::vector<char*> blocks;
  for (int i = 0; i < 200; ++i) {
    char* block = nullptr;
    CHECK_RUNTIME(cudaMallocHost(&block, 1 + size_t(i) * 997 % 20'000));
    block[0] = char(i);
    blocks.push_back(block);
    if (i % 3 == 2) {
      CHECK_RUNTIME(cudaFreeHost(blocks[blocks.size() / 2]));
      blocks.erase(blocks.begin() + long(blocks.size() / 2));
    }
  }
  for (char* block : blocks) CHECK_RUNTIME(cudaFreeHost(block));
  char local = 0;
  EXPECT(cudaFreeHost(&local) == cudaErrorInvalidValue);
  cudaGetLastError();
  return 0;
}

int main(int argc, char** argv) {
  bool small = argc > 1 && std::strcmp(argv[1], "small") == 0;
  if (copies(1) || copies(1027) || copies(small ? size_t(4) << 20 : size_t(16) << 20)) return 1;
  if (reached_by_kernels() || taken_and_given_back()) return 1;
  std::printf("PASSED\n");
  return 0;
}
