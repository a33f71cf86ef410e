// Stream capture across streams and threads: joins, queries, and the error of each mistake.
#include <cuda_runtime.h>

#include <cstdio>
#include <thread>
#include <vector>

#include "../../../../examples/check.hpp"

static bool all_right = true;

static void expect(bool condition, const char* what) {
  if (!condition) std::printf("wrong: %s\n", what);
  all_right &= condition;
}
// The names are compared with those of a native run.
static void tell(const char* what, cudaError_t error) { std::printf("%s: %s\n", what, cudaGetErrorName(error)); }

__global__ void add(int* data, int value) { data[0] += value; }
__global__ void multiply(int* data, int value) { data[0] *= value; }

static cudaStream_t a, b, c;
static cudaEvent_t fork_event, join_event, other_event;
static int* device;

static int value_after(cudaGraph_t graph, int launches) {
  cudaGraphExec_t exec;
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, 0));
  CHECK_RUNTIME(cudaMemset(device, 0, 4 * sizeof(int)));
  CHECK_RUNTIME(cudaDeviceSynchronize());
  for (int i = 0; i < launches; ++i) CHECK_RUNTIME(cudaGraphLaunch(exec, a));
  int value = -1;
  CHECK_RUNTIME(cudaStreamSynchronize(a));
  CHECK_RUNTIME(cudaMemcpy(&value, device, sizeof value, cudaMemcpyDeviceToHost));
  CHECK_RUNTIME(cudaGraphExecDestroy(exec));
  CHECK_RUNTIME(cudaGraphDestroy(graph));
  return value;
}

static cudaStreamCaptureStatus status_of(cudaStream_t stream) {
  cudaStreamCaptureStatus status;
  CHECK_RUNTIME(cudaStreamIsCapturing(stream, &status));
  return status;
}

static void across_streams() {
  CHECK_RUNTIME(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
  add<<<1, 1, 0, a>>>(device, 1);
  CHECK_RUNTIME(cudaEventRecord(fork_event, a));
  CHECK_RUNTIME(cudaStreamWaitEvent(b, fork_event, 0));
  expect(status_of(b) == cudaStreamCaptureStatusActive && status_of(c) == cudaStreamCaptureStatusNone,
         "a stream that waits joins");
  multiply<<<1, 1, 0, b>>>(device, 10);
  CHECK_RUNTIME(cudaEventRecord(join_event, b));
  CHECK_RUNTIME(cudaStreamWaitEvent(a, join_event, 0));
  add<<<1, 1, 0, a>>>(device, 5);
  cudaGraph_t graph;
  CHECK_RUNTIME(cudaStreamEndCapture(a, &graph));
  expect(status_of(a) == cudaStreamCaptureStatusNone && status_of(b) == cudaStreamCaptureStatusNone,
         "the end frees all streams");
  size_t nodes = 0, edges = 0;
  CHECK_RUNTIME(cudaGraphGetNodes(graph, nullptr, &nodes));
  CHECK_RUNTIME(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
  expect(nodes == 3, "three nodes in a row");
  std::printf("%zu edges\n", edges);
  expect(value_after(graph, 2) == 165, "the graph runs in order");
}

static void across_threads() {
  CHECK_RUNTIME(cudaStreamBeginCapture(a, cudaStreamCaptureModeRelaxed));
  std::vector<std::thread> threads;
  std::thread([] {
    add<<<1, 1, 0, a>>>(device, 3);
    CHECK_RUNTIME(cudaEventRecord(fork_event, a));
  }).join();
  std::thread([] {
    CHECK_RUNTIME(cudaStreamWaitEvent(c, fork_event, 0));
    multiply<<<1, 1, 0, c>>>(device, 7);
    CHECK_RUNTIME(cudaEventRecord(join_event, c));
  }).join();
  CHECK_RUNTIME(cudaStreamWaitEvent(a, join_event, 0));
  cudaGraph_t graph = nullptr;
  cudaError_t ended = cudaSuccess;
  std::thread([&] { ended = cudaStreamEndCapture(a, &graph); }).join();
  tell("the end of a relaxed capture in another thread", ended);
  expect(value_after(graph, 1) == 21, "threads capture together");
  CHECK_RUNTIME(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
  add<<<1, 1, 0, a>>>(device, 1);
  std::thread([&] {
    ended = cudaStreamEndCapture(a, &graph);
    // Another thread may make calls that a thread-local capture forbids to its own.
    void* memory = nullptr;
    tell("an allocation of another thread beside a thread-local capture", cudaMalloc(&memory, 256));
    CHECK_RUNTIME(cudaFree(memory));
  }).join();
  tell("the end of a thread-local capture in another thread", ended);
  tell("and then in its own", cudaStreamEndCapture(a, &graph));
  cudaGetLastError();
  if (graph) cudaGraphDestroy(graph);
}

static void mistakes() {
  cudaGraph_t graph = nullptr;
  CHECK_RUNTIME(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
  CHECK_RUNTIME(cudaEventRecord(fork_event, a));
  tell("a query of an event recorded in a capture", cudaEventQuery(fork_event));
  tell("its end", cudaStreamEndCapture(a, &graph));
  CHECK_RUNTIME(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
  tell("a second capture of the stream", cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
  tell("its end", cudaStreamEndCapture(a, &graph));
  CHECK_RUNTIME(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
  tell("a query of a capturing stream", cudaStreamQuery(a));
  tell("its end", cudaStreamEndCapture(a, &graph));
  CHECK_RUNTIME(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
  tell("synchronising the device", cudaDeviceSynchronize());
  tell("its end", cudaStreamEndCapture(a, &graph));

  CHECK_RUNTIME(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
  add<<<1, 1, 0, a>>>(device, 1);
  CHECK_RUNTIME(cudaEventRecord(fork_event, a));
  CHECK_RUNTIME(cudaStreamWaitEvent(b, fork_event, 0));
  add<<<1, 1, 0, b>>>(device, 1);
  tell("the end with a stream not joined", cudaStreamEndCapture(a, &graph));
  expect(graph == nullptr && status_of(b) == cudaStreamCaptureStatusNone, "no graph, and no capture");
  tell("the end of no capture", cudaStreamEndCapture(a, &graph));

  CHECK_RUNTIME(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
  add<<<1, 1, 0, a>>>(device, 1);
  tell("synchronising a capturing stream", cudaStreamSynchronize(a));
  expect(status_of(a) == cudaStreamCaptureStatusInvalidated, "the capture is invalid");
  add<<<1, 1, 0, a>>>(device, 1);
  tell("a launch into an invalid capture", cudaGetLastError());
  tell("the end of an invalid capture", cudaStreamEndCapture(a, &graph));

  CHECK_RUNTIME(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
  void* memory = nullptr;
  tell("an allocation in a global capture", cudaMalloc(&memory, 256));
  tell("its end", cudaStreamEndCapture(a, &graph));

  CHECK_RUNTIME(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
  add<<<1, 1>>>(device, 1);
  tell("a launch into the legacy stream", cudaGetLastError());
  tell("its end", cudaStreamEndCapture(a, &graph));

  CHECK_RUNTIME(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
  CHECK_RUNTIME(cudaStreamBeginCapture(c, cudaStreamCaptureModeGlobal));
  CHECK_RUNTIME(cudaEventRecord(other_event, c));
  tell("a wait that merges two captures", cudaStreamWaitEvent(a, other_event, 0));
  tell("the end of one", cudaStreamEndCapture(a, &graph));
  tell("the end of the other", cudaStreamEndCapture(c, &graph));

  CHECK_RUNTIME(cudaEventRecord(other_event, c));
  CHECK_RUNTIME(cudaStreamSynchronize(c));
  CHECK_RUNTIME(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
  tell("a wait for work outside the capture", cudaStreamWaitEvent(a, other_event, 0));
  tell("its end", cudaStreamEndCapture(a, &graph));

  CHECK_RUNTIME(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
  CHECK_RUNTIME(cudaEventRecord(fork_event, a));
  CHECK_RUNTIME(cudaStreamWaitEvent(b, fork_event, 0));
  tell("the end in a stream that only joined", cudaStreamEndCapture(b, &graph));
  tell("the end in the origin", cudaStreamEndCapture(a, &graph));
  if (graph) cudaGraphDestroy(graph);
  tell("a capture of the legacy stream", cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal));
  CHECK_RUNTIME(cudaStreamBeginCapture(a, cudaStreamCaptureModeRelaxed));
  int number = 0;
  tell("a blocking copy beside a relaxed capture", cudaMemcpy(device, &number, sizeof number, cudaMemcpyHostToDevice));
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  tell("is the legacy stream captured", cudaStreamIsCapturing(nullptr, &status));
  tell("its end", cudaStreamEndCapture(a, &graph));
  if (graph) cudaGraphDestroy(graph);
  cudaGetLastError();
}

static void told() {
  CHECK_RUNTIME(cudaStreamBeginCapture(a, cudaStreamCaptureModeRelaxed));
  add<<<1, 1, 0, a>>>(device, 2);
  cudaStreamCaptureStatus status;
  unsigned long long id = 0, again = 0;
  cudaGraph_t graph = nullptr, same = nullptr;
  const cudaGraphNode_t* dependencies = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  size_t count = 0;
  CHECK_RUNTIME(cudaStreamGetCaptureInfo(a, &status, &id, &graph, &dependencies, &edges, &count));
  expect(status == cudaStreamCaptureStatusActive && id != 0 && graph && count == 1,
         "a capture tells its graph and last node");
  cudaGraphNode_t first = dependencies[0];
  cudaGraphNodeType type;
  CHECK_RUNTIME(cudaGraphNodeGetType(first, &type));
  expect(type == cudaGraphNodeTypeKernel, "which is a kernel");
  // A node of the program's own in the middle of the capture.
  cudaGraphNode_t own, nodes[4];
  int factor = 50;
  void* pointers[] = {&device, &factor};
  cudaKernelNodeParams parameters{};
  parameters.func = reinterpret_cast<void*>(multiply);
  parameters.gridDim = 1;
  parameters.blockDim = 1;
  parameters.kernelParams = pointers;
  CHECK_RUNTIME(cudaGraphAddKernelNode(&own, graph, &first, 1, &parameters));
  CHECK_RUNTIME(cudaStreamUpdateCaptureDependencies(a, &own, nullptr, 1, cudaStreamSetCaptureDependencies));
  CHECK_RUNTIME(cudaStreamGetCaptureInfo(a, &status, &again, &same, &dependencies, &edges, &count));
  expect(again == id && same == graph && count == 1 && dependencies[0] == own, "the program's node is the last");
  add<<<1, 1, 0, a>>>(device, 4);
  cudaGraph_t ended;
  CHECK_RUNTIME(cudaStreamEndCapture(a, &ended));
  expect(ended == graph, "the graph is the one that was told");
  size_t in_graph = 4;
  CHECK_RUNTIME(cudaGraphGetNodes(ended, nodes, &in_graph));
  expect(in_graph == 3, "three nodes");
  expect(value_after(ended, 1) == 104, "the program's node runs");

  // Capture into a graph that has nodes.
  CHECK_RUNTIME(cudaGraphCreate(&graph, 0));
  factor = 3;
  parameters.func = reinterpret_cast<void*>(add);
  CHECK_RUNTIME(cudaGraphAddKernelNode(&own, graph, nullptr, 0, &parameters));
  CHECK_RUNTIME(cudaStreamBeginCaptureToGraph(a, graph, &own, nullptr, 1, cudaStreamCaptureModeGlobal));
  multiply<<<1, 1, 0, a>>>(device, 4);
  CHECK_RUNTIME(cudaStreamEndCapture(a, &same));
  expect(same == graph, "the capture ends with the program's graph");
  expect(value_after(graph, 1) == 12, "a captured part runs behind the program's");

  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  CHECK_RUNTIME(cudaThreadExchangeStreamCaptureMode(&mode));
  expect(mode == cudaStreamCaptureModeGlobal, "a thread's mode is global at first");
  CHECK_RUNTIME(cudaStreamBeginCapture(a, cudaStreamCaptureModeRelaxed));
  void* memory = nullptr;
  tell("an allocation of a relaxed thread in a relaxed capture", cudaMalloc(&memory, 256));
  CHECK_RUNTIME(cudaStreamEndCapture(a, &graph));
  CHECK_RUNTIME(cudaGraphDestroy(graph));
  CHECK_RUNTIME(cudaThreadExchangeStreamCaptureMode(&mode));
}

int main() {
  CHECK_RUNTIME(cudaMalloc(&device, 4 * sizeof(int)));
  for (cudaStream_t* each : {&a, &b, &c}) CHECK_RUNTIME(cudaStreamCreate(each));
  for (cudaEvent_t* each : {&fork_event, &join_event, &other_event}) CHECK_RUNTIME(cudaEventCreate(each));
  across_streams();
  across_threads();
  mistakes();
  told();
  std::printf("%s\n", all_right ? "PASSED" : "FAILED");
  return all_right ? 0 : 1;
}
