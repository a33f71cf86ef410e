// NCCL with one rank: all-reduce, broadcast, all-gather, reduce-scatter and a send to itself, on a stream and in a
// captured graph.
#include <nccl.h>

#include "../../support/cuda_check.hpp"

int main() {
  constexpr size_t kCount = 100000;
  int device = 0;
  ncclComm_t communicator;
  CHECK_LIBRARY(ncclCommInitAll(&communicator, 1, &device));
  int ranks = 0;
  CHECK_LIBRARY(ncclCommCount(communicator, &ranks));
  EXPECT(ranks == 1);
  cudaStream_t stream;
  CHECK_RUNTIME(cudaStreamCreate(&stream));
  check::Random random(1);
  const auto values = random.values<float>(kCount);
  check::Device<float> in(values), out(kCount);
  const auto arrived = [&](const char* name) {
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
    check::close(name, out.host(), values, 0);
    CHECK_RUNTIME(cudaMemset(out.get(), 0, kCount * sizeof(float)));
    CHECK_RUNTIME(cudaDeviceSynchronize());
  };
  CHECK_LIBRARY(ncclAllReduce(in.get(), out.get(), kCount, ncclFloat, ncclSum, communicator, stream));
  arrived("all-reduce");
  CHECK_LIBRARY(ncclBroadcast(in.get(), out.get(), kCount, ncclFloat, 0, communicator, stream));
  arrived("broadcast");
  CHECK_LIBRARY(ncclAllGather(in.get(), out.get(), kCount, ncclFloat, communicator, stream));
  arrived("all-gather");
  CHECK_LIBRARY(ncclReduceScatter(in.get(), out.get(), kCount, ncclFloat, ncclMax, communicator, stream));
  arrived("reduce-scatter");
  CHECK_LIBRARY(ncclGroupStart());
  CHECK_LIBRARY(ncclSend(in.get(), kCount, ncclFloat, 0, communicator, stream));
  CHECK_LIBRARY(ncclRecv(out.get(), kCount, ncclFloat, 0, communicator, stream));
  CHECK_LIBRARY(ncclGroupEnd());
  arrived("send to itself");

  cudaGraph_t graph;
  cudaGraphExec_t instance;
  CHECK_RUNTIME(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CHECK_LIBRARY(ncclAllReduce(in.get(), out.get(), kCount, ncclFloat, ncclSum, communicator, stream));
  CHECK_RUNTIME(cudaStreamEndCapture(stream, &graph));
  CHECK_RUNTIME(cudaGraphInstantiate(&instance, graph, 0));
  CHECK_RUNTIME(cudaGraphLaunch(instance, stream));
  arrived("all-reduce in a graph");
  CHECK_RUNTIME(cudaGraphExecDestroy(instance));
  CHECK_RUNTIME(cudaGraphDestroy(graph));
  CHECK_LIBRARY(ncclCommDestroy(communicator));
  std::printf("PASSED\n");
}
