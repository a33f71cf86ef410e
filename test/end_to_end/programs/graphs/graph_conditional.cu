// Conditional nodes: a kernel decides whether, which and how often parts of the graph run.
#include <cuda_runtime.h>

#include <cstdio>

#include "../../../../examples/check.hpp"

static bool all_right = true;

static void expect(bool condition, const char* what) {
  if (!condition) std::printf("wrong: %s\n", what);
  all_right &= condition;
}

__global__ void decide(cudaGraphConditionalHandle handle, const int* value) {
  cudaGraphSetConditional(handle, unsigned(value[0]));
}
__global__ void count_down(cudaGraphConditionalHandle handle, int* value) {
  value[1] += value[0];
  cudaGraphSetConditional(handle, --value[0] > 0 ? 1 : 0);
}
__global__ void store(int* value, int number) { value[1] = number; }

static cudaStream_t stream;
static int* device;

static int run(cudaGraphExec_t exec, int first) {
  int values[2] = {first, 0};
  CHECK_RUNTIME(cudaMemcpy(device, values, sizeof values, cudaMemcpyHostToDevice));
  CHECK_RUNTIME(cudaGraphLaunch(exec, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  CHECK_RUNTIME(cudaMemcpy(values, device, sizeof values, cudaMemcpyDeviceToHost));
  return values[1];
}

template <class... Arguments>
static cudaGraphNode_t add_kernel(cudaGraph_t graph, const cudaGraphNode_t* after, void* function,
                                  Arguments... arguments) {
  void* pointers[] = {&arguments...};
  cudaKernelNodeParams parameters{};
  parameters.func = function;
  parameters.gridDim = 1;
  parameters.blockDim = 1;
  parameters.kernelParams = pointers;
  cudaGraphNode_t node;
  CHECK_RUNTIME(cudaGraphAddKernelNode(&node, graph, after, after ? 1 : 0, &parameters));
  return node;
}

// A kernel that sets the condition, and behind it a conditional node with `size` bodies.
static cudaGraph_t make(cudaGraphConditionalNodeType type, unsigned size, cudaGraph_t* bodies,
                        cudaGraphConditionalHandle& handle) {
  cudaGraph_t graph;
  CHECK_RUNTIME(cudaGraphCreate(&graph, 0));
  CHECK_RUNTIME(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault));
  cudaGraphNode_t first, node;
  bool decided = type != cudaGraphCondTypeWhile;
  if (decided) first = add_kernel(graph, nullptr, reinterpret_cast<void*>(decide), handle, device);
  cudaGraphNodeParams parameters{};
  parameters.type = cudaGraphNodeTypeConditional;
  parameters.conditional.handle = handle;
  parameters.conditional.type = type;
  parameters.conditional.size = size;
  CHECK_RUNTIME(cudaGraphAddNode(&node, graph, decided ? &first : nullptr, nullptr, decided ? 1 : 0, &parameters));
  for (unsigned i = 0; i < size; ++i) bodies[i] = parameters.conditional.phGraph_out[i];
  cudaGraphNodeType told;
  CHECK_RUNTIME(cudaGraphNodeGetType(node, &told));
  expect(told == cudaGraphNodeTypeConditional, "it is a conditional node");
  return graph;
}

int main() {
  CHECK_RUNTIME(cudaStreamCreate(&stream));
  CHECK_RUNTIME(cudaMalloc(&device, 2 * sizeof(int)));
  cudaGraph_t bodies[3];
  cudaGraphConditionalHandle handle;
  cudaGraphExec_t exec;

  cudaGraph_t graph = make(cudaGraphCondTypeIf, 1, bodies, handle);
  add_kernel(bodies[0], nullptr, reinterpret_cast<void*>(store), device, 5);
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, 0));
  expect(run(exec, 1) == 5 && run(exec, 0) == 0 && run(exec, 1) == 5, "if");
  CHECK_RUNTIME(cudaGraphExecDestroy(exec));
  CHECK_RUNTIME(cudaGraphDestroy(graph));

  graph = make(cudaGraphCondTypeIf, 2, bodies, handle);
  add_kernel(bodies[0], nullptr, reinterpret_cast<void*>(store), device, 5);
  add_kernel(bodies[1], nullptr, reinterpret_cast<void*>(store), device, 6);
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, 0));
  expect(run(exec, 1) == 5 && run(exec, 0) == 6, "if and else");
  CHECK_RUNTIME(cudaGraphExecDestroy(exec));
  CHECK_RUNTIME(cudaGraphDestroy(graph));

  graph = make(cudaGraphCondTypeWhile, 1, bodies, handle);
  CHECK_RUNTIME(cudaStreamBeginCaptureToGraph(stream, bodies[0], nullptr, nullptr, 0, cudaStreamCaptureModeGlobal));
  count_down<<<1, 1, 0, stream>>>(handle, device);
  cudaGraph_t same;
  CHECK_RUNTIME(cudaStreamEndCapture(stream, &same));
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, 0));
  expect(run(exec, 10) == 55 && run(exec, 4) == 10, "while");
  CHECK_RUNTIME(cudaGraphExecDestroy(exec));
  CHECK_RUNTIME(cudaGraphDestroy(graph));

  graph = make(cudaGraphCondTypeSwitch, 3, bodies, handle);
  for (int i = 0; i < 3; ++i) add_kernel(bodies[i], nullptr, reinterpret_cast<void*>(store), device, 20 + i);
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, 0));
  expect(run(exec, 0) == 20 && run(exec, 1) == 21 && run(exec, 2) == 22 && run(exec, 3) == 0, "switch");
  CHECK_RUNTIME(cudaGraphExecDestroy(exec));
  CHECK_RUNTIME(cudaGraphDestroy(graph));
  std::printf("%s\n", all_right ? "PASSED" : "FAILED");
  return all_right ? 0 : 1;
}
