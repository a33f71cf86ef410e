// For each line on its standard input: some rounds of work on permanent and temporary memory, checked against the
// host's results; then "done". PASSED at the end of the input. All memory, with the client's cache, is less than a
// session's first allowance, so the program works without a broker, too.
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

#include "../../../../examples/check.hpp"

__global__ void step(unsigned* data, const unsigned* more, int count, unsigned round) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] = data[i] * 3 + more[i] + round;
}

int main() {
  constexpr int kCount = 5000, kRounds = 25;
  constexpr size_t kBytes = kCount * sizeof(unsigned), kStepBytes = 1u << 20;
  std::vector<unsigned> expected(kCount), more(kCount), host(kCount);
  for (int i = 0; i < kCount; ++i) expected[i] = unsigned(i);
  unsigned* device;
  CHECK_RUNTIME(cudaMalloc(&device, kBytes));
  CHECK_RUNTIME(cudaMemcpy(device, expected.data(), kBytes, cudaMemcpyHostToDevice));
  unsigned round = 0;
  char line[16];
  std::printf("ready\n");
  std::fflush(stdout);
  while (std::fgets(line, sizeof line, stdin)) {
    for (int i = 0; i < kRounds; ++i, ++round) {
      for (int j = 0; j < kCount; ++j) more[j] = round ^ unsigned(j);
      unsigned* comes_and_goes;
      CHECK_RUNTIME(cudaMalloc(&comes_and_goes, kBytes + kStepBytes * (round % 8)));
      CHECK_RUNTIME(cudaMemcpy(comes_and_goes, more.data(), kBytes, cudaMemcpyHostToDevice));
      step<<<(kCount + 127) / 128, 128>>>(device, comes_and_goes, kCount, round);
      CHECK_RUNTIME(cudaGetLastError());
      for (int j = 0; j < kCount; ++j) expected[j] = expected[j] * 3 + more[j] + round;
      CHECK_RUNTIME(cudaMemcpy(host.data(), device, kBytes, cudaMemcpyDeviceToHost));
      CHECK_RUNTIME(cudaFree(comes_and_goes));
      if (host != expected) {
        std::printf("wrong in round %u\nFAILED\n", round);
        return 1;
      }
    }
    std::printf("done\n");
    std::fflush(stdout);
  }
  CHECK_RUNTIME(cudaFree(device));
  std::printf("PASSED\n");
  return 0;
}
