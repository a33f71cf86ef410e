// Submits work to the GPU without end, or N kernels, and prints the number of completed ones, which the kernels count.
//   saturate steps N        N kernels, waiting for every eighth
//   saturate until [N]      until standard input closes, waiting for every Nth; each byte on it asks for "count COUNT"
//   saturate hostile        until standard input closes, without ever waiting before that
//   saturate graph N        N launches of a captured graph of four kernels; ever new captures between them
//   saturate endless        one kernel that never ends, and a wait for it
//   saturate idle           nothing, until standard input closes
// Prints "working" once something has run, and at the end "done COUNT" and PASSED.
#include <cuda_runtime.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "../../../../examples/check.hpp"

__global__ void step(unsigned long long* count, unsigned iterations) {
  float x = threadIdx.x;
  for (unsigned i = 0; i < iterations; ++i) x = x * 0.999f + 0.5f;
  if (x == 12345.678f) *count = 0;
  if (threadIdx.x == 0) atomicAdd(count, 1ull);
}

__global__ void endless(volatile unsigned* never) {
  while (*never == 0) {}
}

static unsigned long long* count;
static cudaStream_t stream;

static unsigned long long counted() {
  unsigned long long done = 0;
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  CHECK_RUNTIME(cudaMemcpy(&done, count, sizeof done, cudaMemcpyDeviceToHost));
  return done - 1;
}

static bool input_closed() {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  if (poll(&input, 1, 0) == 0) return false;
  char asked;
  if (read(STDIN_FILENO, &asked, 1) != 1) return true;
  std::printf("count %llu\n", counted());
  std::fflush(stdout);
  return false;
}

constexpr unsigned kIterations = 3000;
constexpr unsigned kWaitEvery = 8;

static void launch(unsigned kernels, unsigned wait_every) {
  for (unsigned i = 1; kernels == 0 ? !input_closed() : i <= kernels; ++i) {
    step<<<1, 32, 0, stream>>>(count, kIterations);
    CHECK_RUNTIME(cudaGetLastError());
    if (wait_every != 0 && i % wait_every == 0) CHECK_RUNTIME(cudaStreamSynchronize(stream));
  }
}

static void launch_graphs(unsigned launches) {
  cudaStream_t capturing;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&capturing, cudaStreamNonBlocking));
  for (unsigned i = 0; i < launches; ++i) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK_RUNTIME(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeGlobal));
    for (int kernel = 0; kernel < 4; ++kernel) step<<<1, 32, 0, capturing>>>(count, kIterations / 4);
    CHECK_RUNTIME(cudaStreamEndCapture(capturing, &graph));
    CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, 0));
    CHECK_RUNTIME(cudaGraphLaunch(exec, stream));
    if (i % kWaitEvery == 0) CHECK_RUNTIME(cudaStreamSynchronize(stream));
    CHECK_RUNTIME(cudaGraphExecDestroy(exec));
    CHECK_RUNTIME(cudaGraphDestroy(graph));
  }
}

int main(int argc, char** argv) {
  const char* mode = argc > 1 ? argv[1] : "until";
  unsigned number = argc > 2 ? unsigned(std::atoi(argv[2])) : 0;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK_RUNTIME(cudaMalloc(&count, sizeof *count));
  CHECK_RUNTIME(cudaMemset(count, 0, sizeof *count));
  CHECK_RUNTIME(cudaDeviceSynchronize());
  step<<<1, 32, 0, stream>>>(count, 1);
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  std::printf("working\n");
  std::fflush(stdout);
  if (std::strcmp(mode, "graph") == 0) {
    launch_graphs(number);
  } else if (std::strcmp(mode, "endless") == 0) {
    unsigned* never;
    CHECK_RUNTIME(cudaMalloc(&never, sizeof *never));
    CHECK_RUNTIME(cudaMemset(never, 0, sizeof *never));
    CHECK_RUNTIME(cudaDeviceSynchronize());
    endless<<<1, 1, 0, stream>>>(never);
  } else if (std::strcmp(mode, "idle") == 0) {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    while (!input_closed()) poll(&input, 1, -1);
  } else if (std::strcmp(mode, "hostile") == 0) {
    launch(0, 0);
  } else if (std::strcmp(mode, "until") == 0) {
    launch(0, number != 0 ? number : kWaitEvery);
  } else {
    launch(number, kWaitEvery);
  }
  std::printf("done %llu\nPASSED\n", counted());
  return 0;
}
