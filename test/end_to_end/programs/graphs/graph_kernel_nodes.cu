// Kernel nodes: made, queried and changed, in graphs and in executable graphs, with the runtime's and the driver's
// interfaces.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdio>
#include <cstring>

#include "../../../../examples/check.hpp"

static bool all_right = true;

static void expect(bool condition, const char* what) {
  if (!condition) std::printf("wrong: %s\n", what);
  all_right &= condition;
}

struct Mixed {
  char letter;
  double number;
};

__global__ void store(int* where, char small, double number, Mixed mixed, int index) {
  if (threadIdx.x == 0)
    where[index] = int(small) + int(number) * 10 + int(mixed.letter) * 100 + int(mixed.number) * 1000;
}
__global__ void twice(int* where, int index) {
  if (threadIdx.x == 0) where[index] *= 2;
}

static cudaStream_t stream;
static int* device;

static int run(cudaGraphExec_t exec, int index) {
  int value = -1;
  CHECK_RUNTIME(cudaGraphLaunch(exec, stream));
  CHECK_RUNTIME(cudaMemcpyAsync(&value, device + index, sizeof value, cudaMemcpyDeviceToHost, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  return value;
}

static void check_parameters(cudaGraphNode_t node, int index, char small) {
  cudaKernelNodeParams asked{};
  CHECK_RUNTIME(cudaGraphKernelNodeGetParams(node, &asked));
  expect(asked.func == reinterpret_cast<void*>(store), "a node tells its function");
  expect(asked.gridDim.x == 2 && asked.blockDim.x == 32, "a node tells its shape");
  if (!asked.kernelParams) {
    expect(false, "a node tells its parameters");
    return;
  }
  expect(*static_cast<int**>(asked.kernelParams[0]) == device && *static_cast<char*>(asked.kernelParams[1]) == small &&
             *static_cast<double*>(asked.kernelParams[2]) == 2 &&
             static_cast<Mixed*>(asked.kernelParams[3])->number == 4 &&
             *static_cast<int*>(asked.kernelParams[4]) == index,
         "a node tells its parameters' values");
}

static void made() {
  char small = 1;
  double number = 2;
  Mixed mixed{3, 4};
  int index = 0;
  void* pointers[] = {&device, &small, &number, &mixed, &index};
  cudaKernelNodeParams parameters{};
  parameters.func = reinterpret_cast<void*>(store);
  parameters.gridDim = 2;
  parameters.blockDim = 32;
  parameters.kernelParams = pointers;
  cudaGraph_t graph;
  CHECK_RUNTIME(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t first, second;
  CHECK_RUNTIME(cudaGraphAddKernelNode(&first, graph, nullptr, 0, &parameters));
  small = 9;  // the node has its own
  check_parameters(first, 0, 1);
  void* others[] = {&device, &index};
  cudaKernelNodeParams doubling{};
  doubling.func = reinterpret_cast<void*>(twice);
  doubling.gridDim = 1;
  doubling.blockDim = 1;
  doubling.kernelParams = others;
  CHECK_RUNTIME(cudaGraphAddKernelNode(&second, graph, &first, 1, &doubling));
  cudaGraphExec_t exec;
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, 0));
  expect(run(exec, 0) == 2 * 4321, "the graph runs");
  small = 5;
  CHECK_RUNTIME(cudaGraphExecKernelNodeSetParams(exec, first, &parameters));
  expect(run(exec, 0) == 2 * 4325, "an executable graph's parameters change");
  check_parameters(first, 0, 1);
  CHECK_RUNTIME(cudaGraphKernelNodeSetParams(first, &parameters));
  check_parameters(first, 0, 5);
  cudaKernelNodeParams asked{};
  CHECK_RUNTIME(cudaGraphKernelNodeGetParams(first, &asked));
  CHECK_RUNTIME(cudaGraphKernelNodeSetParams(first, &asked));
  check_parameters(first, 0, 5);
  CHECK_RUNTIME(cudaGraphNodeSetEnabled(exec, second, 0));
  unsigned enabled = 1;
  CHECK_RUNTIME(cudaGraphNodeGetEnabled(exec, second, &enabled));
  expect(enabled == 0 && run(exec, 0) == 4325, "a node can be left out");
  parameters.func = nullptr;
  expect(cudaGraphAddKernelNode(&second, graph, nullptr, 0, &parameters) != cudaSuccess,
         "a node without a function is refused");
  CHECK_RUNTIME(cudaGraphExecDestroy(exec));
  CHECK_RUNTIME(cudaGraphDestroy(graph));
}

static void generic() {
  char small = 1;
  double number = 2;
  Mixed mixed{3, 4};
  int index = 1;
  void* pointers[] = {&device, &small, &number, &mixed, &index};
  cudaGraphNodeParams parameters{};
  parameters.type = cudaGraphNodeTypeKernel;
  parameters.kernel.func = reinterpret_cast<void*>(store);
  parameters.kernel.gridDim = 2;
  parameters.kernel.blockDim = 32;
  parameters.kernel.kernelParams = pointers;
  cudaGraph_t graph;
  CHECK_RUNTIME(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t clear, node;
  cudaGraphNodeParams clearing{};
  clearing.type = cudaGraphNodeTypeMemset;
  clearing.memset.dst = device;
  clearing.memset.elementSize = 4;
  clearing.memset.width = 16;
  clearing.memset.height = 1;
  CHECK_RUNTIME(cudaGraphAddNode(&clear, graph, nullptr, nullptr, 0, &clearing));
  CHECK_RUNTIME(cudaGraphAddNode(&node, graph, &clear, nullptr, 1, &parameters));
  check_parameters(node, 1, 1);
  cudaGraphExec_t exec;
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, 0));
  expect(run(exec, 1) == 4321, "a generic node runs");
  small = 6;
  CHECK_RUNTIME(cudaGraphExecNodeSetParams(exec, node, &parameters));
  expect(run(exec, 1) == 4326, "a generic node's parameters change");
  CHECK_RUNTIME(cudaGraphNodeSetParams(node, &parameters));
  check_parameters(node, 1, 6);
  CHECK_RUNTIME(cudaGraphExecDestroy(exec));
  CHECK_RUNTIME(cudaGraphDestroy(graph));
}

static void captured() {
  CHECK_RUNTIME(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  store<<<2, 32, 0, stream>>>(device, 1, 2.0, Mixed{3, 4}, 3);
  twice<<<1, 1, 0, stream>>>(device, 3);
  cudaGraph_t graph;
  CHECK_RUNTIME(cudaStreamEndCapture(stream, &graph));
  cudaGraphNode_t nodes[4] = {};
  size_t count = 4;
  CHECK_RUNTIME(cudaGraphGetNodes(graph, nodes, &count));
  expect(count == 2, "two nodes were captured");
  size_t before = 0;
  CHECK_RUNTIME(cudaGraphNodeGetDependencies(nodes[0], nullptr, nullptr, &before));
  cudaGraphNode_t first = before == 0 ? nodes[0] : nodes[1];
  check_parameters(first, 3, 1);
  cudaGraphNodeType type;
  CHECK_RUNTIME(cudaGraphNodeGetType(first, &type));
  expect(type == cudaGraphNodeTypeKernel, "it is a kernel node");
  // Queried parameters can be set again, with one of them replaced.
  cudaKernelNodeParams asked{};
  CHECK_RUNTIME(cudaGraphKernelNodeGetParams(first, &asked));
  char small = 8;
  void* pointers[5];
  std::memcpy(pointers, asked.kernelParams, sizeof pointers);
  pointers[1] = &small;
  asked.kernelParams = pointers;
  CHECK_RUNTIME(cudaGraphKernelNodeSetParams(first, &asked));
  cudaGraphExec_t exec;
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, 0));
  expect(run(exec, 3) == 2 * 4328, "a captured node's parameters change");
  cudaGraph_t clone;
  cudaGraphNode_t same;
  CHECK_RUNTIME(cudaGraphClone(&clone, graph));
  CHECK_RUNTIME(cudaGraphNodeFindInClone(&same, first, clone));
  check_parameters(same, 3, 8);
  CHECK_RUNTIME(cudaGraphDestroy(clone));
  CHECK_RUNTIME(cudaGraphExecDestroy(exec));
  CHECK_RUNTIME(cudaGraphDestroy(graph));
}

// The driver's interface, with the parameters packed by the program, and attributes.
static void by_driver() {
  cudaFunction_t function;
  CHECK_RUNTIME(cudaGetFuncBySymbol(&function, reinterpret_cast<void*>(store)));
  struct {
    int* where;
    char small;
    double number;
    Mixed mixed;
    int index;
  } packed{device, 1, 2, {3, 4}, 5};
  size_t bytes = offsetof(decltype(packed), index) + sizeof(int);
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  CUDA_KERNEL_NODE_PARAMS parameters{};
  parameters.func = reinterpret_cast<CUfunction>(function);
  parameters.gridDimX = 2;
  parameters.gridDimY = parameters.gridDimZ = 1;
  parameters.blockDimX = 32;
  parameters.blockDimY = parameters.blockDimZ = 1;
  parameters.extra = extra;
  CUgraph graph;
  CUgraphNode node, other;
  CHECK_DRIVER(cuGraphCreate(&graph, 0));
  CHECK_DRIVER(cuGraphAddKernelNode(&node, graph, nullptr, 0, &parameters));
  bytes = sizeof packed;
  std::printf("a packed buffer with more than the parameters: %d\n",
              int(cuGraphAddKernelNode(&other, graph, nullptr, 0, &parameters)));
  bytes = offsetof(decltype(packed), index) + sizeof(int);
  CUlaunchAttributeValue value{}, got{};
  value.priority = 0;
  CHECK_DRIVER(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
  got.priority = 99;
  CHECK_DRIVER(cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &got));
  expect(got.priority == 0, "an attribute is kept");
  CHECK_DRIVER(cuGraphAddKernelNode(&other, graph, &node, 1, &parameters));
  CHECK_DRIVER(cuGraphKernelNodeCopyAttributes(other, node));
  got.priority = 99;
  CHECK_DRIVER(cuGraphKernelNodeGetAttribute(other, CU_LAUNCH_ATTRIBUTE_PRIORITY, &got));
  expect(got.priority == 0, "an attribute is copied");
  CUDA_KERNEL_NODE_PARAMS asked{};
  CHECK_DRIVER(cuGraphKernelNodeGetParams(node, &asked));
  // A driver may return them in their original form, or as pointers to each.
  expect((asked.kernelParams != nullptr) != (asked.extra != nullptr), "packed parameters are told in one form");
  CUgraphExec exec;
  CHECK_DRIVER(cuGraphInstantiate(&exec, graph, 0));
  expect(run(exec, 5) == 4321, "packed parameters");
  parameters.blockDimX = 4096;
  expect(cuGraphAddKernelNode(&other, graph, nullptr, 0, &parameters) == CUDA_ERROR_INVALID_VALUE,
         "an impossible shape is refused");
  CHECK_DRIVER(cuGraphExecDestroy(exec));
  CHECK_DRIVER(cuGraphDestroy(graph));
}

int main() {
  CHECK_RUNTIME(cudaStreamCreate(&stream));
  CHECK_RUNTIME(cudaMalloc(&device, 16 * sizeof(int)));
  CHECK_RUNTIME(cudaMemset(device, 0, 16 * sizeof(int)));
  made();
  generic();
  captured();
  by_driver();
  std::printf("%s\n", all_right ? "PASSED" : "FAILED");
  return all_right ? 0 : 1;
}
