// Compiled with --default-stream per-thread: the default stream is each thread's own.
#include <thread>
#include <vector>

#include "check.h"

__global__ void add(int* value, int n) { *value += n; }

int main() {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      int* value = nullptr;
      int host = 0;
      CUDA(cudaMalloc(&value, sizeof *value));
      CUDA(cudaMemset(value, 0, sizeof *value));
      for (int i = 0; i < 50; ++i) {
        add<<<1, 1>>>(value, t);
      }
      CUDA(cudaMemcpyAsync(&host, value, sizeof host, cudaMemcpyDeviceToHost));
      CUDA(cudaStreamSynchronize(nullptr));
      CHECK(host == 50 * t);
      CUDA(cudaFree(value));
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  return 0;
}
