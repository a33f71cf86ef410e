// usage: graph_loop [REPLAYS]: a captured graph of copies and kernels, replayed; each replay continues from the results
// of the one before, and a digest covers all of them.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include <cuda_runtime.h>

#include "../../../support/cuda_check.hpp"

constexpr int kWords = 4096;

static __global__ void mix(uint64_t* words, const uint64_t* added) {
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  words[at] = (words[at] ^ added[at]) * 6364136223846793005ull + uint64_t(at);
}

int main(int argc, char** argv) {
  int replays = argc > 1 ? std::atoi(argv[1]) : 200;
  uint64_t *host = nullptr, *back = nullptr, *words = nullptr, *added = nullptr;
  CHECK_RUNTIME(cudaMallocHost(&host, kWords * sizeof *host));
  CHECK_RUNTIME(cudaMallocHost(&back, kWords * sizeof *back));
  CHECK_RUNTIME(cudaMalloc(&words, kWords * sizeof *words));
  CHECK_RUNTIME(cudaMalloc(&added, kWords * sizeof *added));
  CHECK_RUNTIME(cudaMemset(words, 1, kWords * sizeof *words));
  cudaStream_t stream;
  CHECK_RUNTIME(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK_RUNTIME(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CHECK_RUNTIME(cudaMemcpyAsync(added, host, kWords * sizeof *host, cudaMemcpyHostToDevice, stream));
  for (int i = 0; i < 4; ++i) mix<<<kWords / 256, 256, 0, stream>>>(words, added);
  CHECK_RUNTIME(cudaMemcpyAsync(back, words, kWords * sizeof *back, cudaMemcpyDeviceToHost, stream));
  CHECK_RUNTIME(cudaStreamEndCapture(stream, &graph));
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, 0));
  uint64_t digest = 0;
  for (int replay = 0; replay < replays; ++replay) {
    for (int i = 0; i < kWords; ++i) host[i] = digest + uint64_t(replay) * 31 + uint64_t(i);
    CHECK_RUNTIME(cudaGraphLaunch(exec, stream));
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
    for (int i = 0; i < kWords; ++i) digest = (digest ^ back[i]) * 1099511628211ull;
    if (replay % 50 == 49)
      std::printf("after %d replays: %016llx\n", replay + 1, static_cast<unsigned long long>(digest));
  }
  std::printf("PASSED\n");
  return 0;
}
