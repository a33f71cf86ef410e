// Graphs that allocate and free memory: nodes, captured allocations, memory that outlives its graph, and the device's
// account of it.
#include <cuda_runtime.h>

#include <cstdio>

#include "../../../../examples/check.hpp"

static bool all_right = true;

static void expect(bool condition, const char* what) {
  if (!condition) std::printf("wrong: %s\n", what);
  all_right &= condition;
}

__global__ void fill(int* data, int value) { data[threadIdx.x] = value + threadIdx.x; }
__global__ void sum(const int* data, int* out) { atomicAdd(out, data[threadIdx.x]); }

static cudaStream_t stream;

int main() {
  CHECK_RUNTIME(cudaStreamCreate(&stream));
  int* result;
  CHECK_RUNTIME(cudaMalloc(&result, sizeof(int)));

  // Captured.
  CHECK_RUNTIME(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  int* scratch = nullptr;
  CHECK_RUNTIME(cudaMallocAsync(&scratch, 1 << 20, stream));
  CHECK_RUNTIME(cudaMemsetAsync(result, 0, sizeof(int), stream));
  fill<<<1, 128, 0, stream>>>(scratch, 1);
  sum<<<1, 128, 0, stream>>>(scratch, result);
  CHECK_RUNTIME(cudaFreeAsync(scratch, stream));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK_RUNTIME(cudaStreamEndCapture(stream, &graph));
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, 0));
  int value = 0;
  for (int i = 0; i < 3; ++i) {
    CHECK_RUNTIME(cudaGraphLaunch(exec, stream));
    CHECK_RUNTIME(cudaMemcpyAsync(&value, result, sizeof value, cudaMemcpyDeviceToHost, stream));
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
    expect(value == 128 + 127 * 64, "captured allocations work");
  }
  size_t used = 0, high = 0;
  CHECK_RUNTIME(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemCurrent, &used));
  CHECK_RUNTIME(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &high));
  expect(used >= 1 << 20 && high >= 1 << 20, "the device counts the memory of graphs");
  CHECK_RUNTIME(cudaGraphExecDestroy(exec));
  CHECK_RUNTIME(cudaGraphDestroy(graph));
  CHECK_RUNTIME(cudaDeviceGraphMemTrim(0));
  CHECK_RUNTIME(cudaDeviceGetGraphMemAttribute(0, cudaGraphMemAttrReservedMemCurrent, &used));
  expect(used == 0, "trimming gives it back");
  high = 0;
  CHECK_RUNTIME(cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrReservedMemHigh, &high));

  // Nodes; the memory outlives the graph's launch and is freed by the program.
  CHECK_RUNTIME(cudaGraphCreate(&graph, 0));
  cudaMemAllocNodeParams parameters{};
  parameters.poolProps.allocType = cudaMemAllocationTypePinned;
  parameters.poolProps.location.type = cudaMemLocationTypeDevice;
  parameters.poolProps.location.id = 0;
  parameters.bytesize = 4096;
  cudaGraphNode_t allocation, clear;
  CHECK_RUNTIME(cudaGraphAddMemAllocNode(&allocation, graph, nullptr, 0, &parameters));
  expect(parameters.dptr != nullptr, "a node tells the address");
  cudaMemAllocNodeParams asked{};
  CHECK_RUNTIME(cudaGraphMemAllocNodeGetParams(allocation, &asked));
  expect(asked.dptr == parameters.dptr && asked.bytesize == 4096, "a node tells what it allocates");
  cudaMemsetParams clearing{};
  clearing.dst = parameters.dptr;
  clearing.value = 0x01020304;
  clearing.elementSize = 4;
  clearing.width = 1024;
  clearing.height = 1;
  CHECK_RUNTIME(cudaGraphAddMemsetNode(&clear, graph, &allocation, 1, &clearing));
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, 0));
  CHECK_RUNTIME(cudaGraphLaunch(exec, stream));
  int host[1024] = {};
  CHECK_RUNTIME(cudaMemcpyAsync(host, parameters.dptr, sizeof host, cudaMemcpyDeviceToHost, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  expect(host[0] == 0x01020304 && host[1023] == 0x01020304, "the memory holds what the graph wrote");
  std::printf("launched again without freeing: %s\n", cudaGetErrorName(cudaGraphLaunch(exec, stream)));
  cudaGetLastError();
  CHECK_RUNTIME(cudaFreeAsync(parameters.dptr, stream));
  CHECK_RUNTIME(cudaGraphLaunch(exec, stream));
  CHECK_RUNTIME(cudaFreeAsync(parameters.dptr, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  CHECK_RUNTIME(cudaGraphExecDestroy(exec));

  // The same, freed by each launch.
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, cudaGraphInstantiateFlagAutoFreeOnLaunch));
  for (int i = 0; i < 3; ++i) CHECK_RUNTIME(cudaGraphLaunch(exec, stream));
  CHECK_RUNTIME(cudaFreeAsync(parameters.dptr, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  CHECK_RUNTIME(cudaGraphExecDestroy(exec));

  // Freed without an allocation by the launch, after a host function; and during a capture.
  const cudaHostFn_t nothing = [](void*) {};
  cudaStream_t captured;
  cudaGraph_t empty;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking));
  for (int i = 0; i < 40; ++i) {
    if (i == 20) CHECK_RUNTIME(cudaStreamBeginCapture(captured, cudaStreamCaptureModeRelaxed));
    CHECK_RUNTIME(cudaLaunchHostFunc(stream, nothing, nullptr));
    expect(cudaFree(parameters.dptr) == cudaErrorInvalidValue, "what no launch has allocated cannot be freed");
  }
  cudaGetLastError();
  CHECK_RUNTIME(cudaStreamEndCapture(captured, &empty));
  CHECK_RUNTIME(cudaGraphDestroy(empty));

  // Another graph frees it.
  cudaGraph_t freeing;
  cudaGraphExec_t free_exec;
  cudaGraphNode_t free_node;
  CHECK_RUNTIME(cudaGraphCreate(&freeing, 0));
  CHECK_RUNTIME(cudaGraphAddMemFreeNode(&free_node, freeing, nullptr, 0, parameters.dptr));
  void* freed = nullptr;
  CHECK_RUNTIME(cudaGraphMemFreeNodeGetParams(free_node, &freed));
  expect(freed == parameters.dptr, "a node tells what it frees");
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, 0));
  CHECK_RUNTIME(cudaGraphInstantiate(&free_exec, freeing, 0));
  for (int i = 0; i < 3; ++i) {
    CHECK_RUNTIME(cudaGraphLaunch(exec, stream));
    CHECK_RUNTIME(cudaGraphLaunch(free_exec, stream));
  }
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  cudaGraph_t clone;
  std::printf("cloning a graph that allocates: %s\n", cudaGetErrorName(cudaGraphClone(&clone, graph)));
  cudaGetLastError();
  CHECK_RUNTIME(cudaGraphExecDestroy(exec));
  CHECK_RUNTIME(cudaGraphExecDestroy(free_exec));
  CHECK_RUNTIME(cudaGraphDestroy(graph));
  CHECK_RUNTIME(cudaGraphDestroy(freeing));
  std::printf("%s\n", all_right ? "PASSED" : "FAILED");
  return all_right ? 0 : 1;
}
