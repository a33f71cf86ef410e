// Host functions in graphs: data that the device has copied to the host is visible to them, and their writes are copied
// on.
#include <cuda_runtime.h>

#include <cstdio>

#include "../../../../examples/check.hpp"

static bool all_right = true;

static void expect(bool condition, const char* what) {
  if (!condition) std::printf("wrong: %s\n", what);
  all_right &= condition;
}

__global__ void add(int* data, int value) { data[threadIdx.x] += value; }

struct Work {
  int* data;
  int factor;
  int calls;
};

static void CUDART_CB multiply(void* user) {
  auto* work = static_cast<Work*>(user);
  for (int i = 0; i < 32; ++i) work->data[i] *= work->factor;
  ++work->calls;
}
static void CUDART_CB count(void* user) { ++static_cast<Work*>(user)->calls; }

static cudaStream_t stream;

// device + 1 -> host * factor -> device, once in each launch.
static void check(cudaGraphExec_t exec, int* device, Work& work, const char* what) {
  CHECK_RUNTIME(cudaMemset(device, 0, 32 * sizeof(int)));
  CHECK_RUNTIME(cudaDeviceSynchronize());
  int expected = 0;
  for (int round = 0; round < 4; ++round) {
    work.factor = round + 2;
    CHECK_RUNTIME(cudaGraphLaunch(exec, stream));
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
    expected = (expected + 1) * (round + 2);
  }
  // Launched again while it runs.
  for (int i = 0; i < 3; ++i) {
    CHECK_RUNTIME(cudaGraphLaunch(exec, stream));
    expected = (expected + 1) * 5;
  }
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  int back[32];
  CHECK_RUNTIME(cudaMemcpy(back, device, sizeof back, cudaMemcpyDeviceToHost));
  bool right = work.calls == 7;
  for (int value : back) right &= value == expected;
  expect(right, what);
}

int main() {
  CHECK_RUNTIME(cudaStreamCreate(&stream));
  int* device;
  Work work{};
  CHECK_RUNTIME(cudaMalloc(&device, 32 * sizeof(int)));
  CHECK_RUNTIME(cudaMallocHost(&work.data, 32 * sizeof(int)));

  CHECK_RUNTIME(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  add<<<1, 32, 0, stream>>>(device, 1);
  CHECK_RUNTIME(cudaMemcpyAsync(work.data, device, 32 * sizeof(int), cudaMemcpyDeviceToHost, stream));
  CHECK_RUNTIME(cudaLaunchHostFunc(stream, multiply, &work));
  CHECK_RUNTIME(cudaMemcpyAsync(device, work.data, 32 * sizeof(int), cudaMemcpyHostToDevice, stream));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK_RUNTIME(cudaStreamEndCapture(stream, &graph));
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, 0));
  check(exec, device, work, "captured host functions");
  CHECK_RUNTIME(cudaGraphExecDestroy(exec));
  CHECK_RUNTIME(cudaGraphDestroy(graph));

  int* buffer;
  constexpr size_t kBytes = 32 * sizeof(int);
  CHECK_RUNTIME(cudaMallocHost(&buffer, 1 << 20));
  Work other{buffer, 0, 0};
  CHECK_RUNTIME(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t kernel, down, host, up;
  int one = 1;
  void* pointers[] = {&device, &one};
  cudaKernelNodeParams adding{};
  adding.func = reinterpret_cast<void*>(add);
  adding.gridDim = 1;
  adding.blockDim = 32;
  adding.kernelParams = pointers;
  CHECK_RUNTIME(cudaGraphAddKernelNode(&kernel, graph, nullptr, 0, &adding));
  CHECK_RUNTIME(cudaGraphAddMemcpyNode1D(&down, graph, &kernel, 1, buffer, device, kBytes, cudaMemcpyDeviceToHost));
  cudaHostNodeParams calling{multiply, &other};
  CHECK_RUNTIME(cudaGraphAddHostNode(&host, graph, &down, 1, &calling));
  CHECK_RUNTIME(cudaGraphAddMemcpyNode1D(&up, graph, &host, 1, device, buffer, kBytes, cudaMemcpyHostToDevice));
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, 0));
  check(exec, device, other, "host nodes");

  cudaHostNodeParams asked{};
  CHECK_RUNTIME(cudaGraphHostNodeGetParams(host, &asked));
  expect(asked.fn == multiply && asked.userData == &other, "a host node tells what it calls");
  Work third{buffer, 1, 0};
  calling = {count, &third};
  CHECK_RUNTIME(cudaGraphExecHostNodeSetParams(exec, host, &calling));
  CHECK_RUNTIME(cudaGraphLaunch(exec, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  expect(third.calls == 1 && other.calls == 7, "an executable graph calls another function");
  CHECK_RUNTIME(cudaGraphHostNodeSetParams(host, &calling));
  CHECK_RUNTIME(cudaGraphHostNodeGetParams(host, &asked));
  expect(asked.fn == count && asked.userData == &third, "a host node is changed");

  // A graph of nothing but a host function, as a child and a generic node.
  cudaGraph_t parent, small;
  cudaGraphNode_t node;
  Work fourth{};
  CHECK_RUNTIME(cudaGraphCreate(&small, 0));
  cudaGraphNodeParams generic{};
  generic.type = cudaGraphNodeTypeHost;
  generic.host.fn = count;
  generic.host.userData = &fourth;
  CHECK_RUNTIME(cudaGraphAddNode(&node, small, nullptr, nullptr, 0, &generic));
  CHECK_RUNTIME(cudaGraphCreate(&parent, 0));
  CHECK_RUNTIME(cudaGraphAddChildGraphNode(&node, parent, nullptr, 0, small));
  CHECK_RUNTIME(cudaGraphDestroy(small));
  cudaGraphExec_t nested;
  CHECK_RUNTIME(cudaGraphInstantiate(&nested, parent, 0));
  for (int i = 0; i < 10; ++i) CHECK_RUNTIME(cudaGraphLaunch(nested, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  expect(fourth.calls == 10, "a host function in a child graph");
  CHECK_RUNTIME(cudaGraphExecDestroy(nested));
  CHECK_RUNTIME(cudaGraphExecDestroy(exec));
  CHECK_RUNTIME(cudaGraphDestroy(parent));
  CHECK_RUNTIME(cudaGraphDestroy(graph));
  std::printf("%s\n", all_right ? "PASSED" : "FAILED");
  return all_right ? 0 : 1;
}
