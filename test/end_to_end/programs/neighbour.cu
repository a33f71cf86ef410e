// Works and checks until its standard input closes: this session must not notice faults of others. Prints "working"
// after the first round and PASSED at the end.
#include <cuda_runtime.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <vector>

#include "../../../examples/check.hpp"

__global__ void step(int* data, int count, int round) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] = data[i] * 3 + round;
}

int main() {
  constexpr int kCount = 5000;
  std::vector<int> expected(kCount), host(kCount);
  for (int i = 0; i < kCount; ++i) expected[i] = i;
  int* device;
  CHECK_RUNTIME(cudaMalloc(&device, kCount * sizeof(int)));
  CHECK_RUNTIME(cudaMemcpy(device, expected.data(), kCount * sizeof(int), cudaMemcpyHostToDevice));
  int rounds = 0;
  for (bool more = true; more; ++rounds) {
    step<<<(kCount + 127) / 128, 128>>>(device, kCount, rounds);
    CHECK_RUNTIME(cudaGetLastError());
    for (int i = 0; i < kCount; ++i) expected[i] = int(unsigned(expected[i]) * 3u + unsigned(rounds));
    CHECK_RUNTIME(cudaMemcpy(host.data(), device, kCount * sizeof(int), cudaMemcpyDeviceToHost));
    if (host != expected) {
      std::printf("wrong in round %d\nFAILED\n", rounds);
      return 1;
    }
    if (rounds == 0) {
      std::printf("working\n");
      std::fflush(stdout);
    }
    pollfd input{STDIN_FILENO, POLLIN, 0};
    more = poll(&input, 1, 0) == 0;
  }
  CHECK_RUNTIME(cudaFree(device));
  std::printf("%d rounds\nPASSED\n", rounds);
  return 0;
}
