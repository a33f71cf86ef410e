// usage: large_copies [MIB [ROUNDS]]: copies this size to the device and back, from pageable and from pinned memory,
// and prints a digest of the result.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>

#include "../../../support/cuda_check.hpp"

static __global__ void step(uint64_t* words, size_t count, uint64_t round) {
  size_t at = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
  // One word of each 4 KiB, because the program tests transfers.
  if (at * 512 < count) words[at * 512] = words[at * 512] * 6364136223846793005ull + round;
}

static uint64_t digest(const uint64_t* words, size_t count) {
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum = (sum ^ words[i]) * 1099511628211ull;
  return sum;
}

int main(int argc, char** argv) {
  size_t bytes = size_t(argc > 1 ? std::atoi(argv[1]) : 64) << 20, count = bytes / sizeof(uint64_t);
  int rounds = argc > 2 ? std::atoi(argv[2]) : 2;
  std::vector<uint64_t> pageable(count);
  for (size_t i = 0; i < count; ++i) pageable[i] = i * 0x9e3779b97f4a7c15ull;
  uint64_t *pinned = nullptr, *device = nullptr;
  CHECK_RUNTIME(cudaMallocHost(&pinned, bytes));
  CHECK_RUNTIME(cudaMalloc(&device, bytes));
  cudaStream_t stream;
  CHECK_RUNTIME(cudaStreamCreate(&stream));
  unsigned blocks = unsigned((count / 512 + 255) / 256);
  for (int round = 0; round < rounds; ++round) {
    CHECK_RUNTIME(cudaMemcpy(device, pageable.data(), bytes, cudaMemcpyHostToDevice));
    step<<<blocks, 256, 0, stream>>>(device, count, uint64_t(round));
    CHECK_RUNTIME(cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost, stream));
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
    std::printf("round %d: pinned %016llx\n", round, static_cast<unsigned long long>(digest(pinned, count)));
    CHECK_RUNTIME(cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, stream));
    step<<<blocks, 256, 0, stream>>>(device, count, uint64_t(round));
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
    CHECK_RUNTIME(cudaMemcpy(pageable.data(), device, bytes, cudaMemcpyDeviceToHost));
    std::printf("round %d: pageable %016llx\n", round, static_cast<unsigned long long>(digest(pageable.data(), count)));
  }
  std::printf("PASSED\n");
  return 0;
}
