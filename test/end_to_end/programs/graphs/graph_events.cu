// Events that graphs record: queried, waited for and timed right after the launch and when their node is done, for each
// way in which a node gets its event. A host function blocks the graph, so nothing depends on the device's speed.
#include <cuda.h>
#include <cuda_runtime.h>
#include <semaphore.h>

#include <cstdio>

#include "../../../../examples/check.hpp"

static bool all_right = true;

static void expect(bool condition, const char* way, const char* what) {
  if (!condition) std::printf("wrong: %s: %s\n", way, what);
  all_right &= condition;
}

static __global__ void count(int* value) { ++*value; }

static sem_t before, behind;  // what the nodes before and behind the event's wait for

static void CUDART_CB stand(void* gate) {
  while (sem_wait(static_cast<sem_t*>(gate)) != 0) {}
}

static constexpr int kWords = 1024;
static cudaStream_t stream, other;
static int* device;
static int* pinned;
// Pinned, because natively a launch does not return before a copy to pageable memory, which is blocked here.
static int* host;
static constexpr size_t kHostBytes = kWords * sizeof(int);
static int launches = 0;

static cudaEvent_t new_event() {
  cudaEvent_t event;
  CHECK_RUNTIME(cudaEventCreate(&event));
  return event;
}

static cudaGraph_t new_graph() {
  cudaGraph_t graph;
  CHECK_RUNTIME(cudaGraphCreate(&graph, 0));
  return graph;
}

static cudaGraphNode_t add_stand(cudaGraph_t graph, const cudaGraphNode_t* after, sem_t* gate) {
  cudaHostNodeParams parameters{stand, gate};
  cudaGraphNode_t node;
  CHECK_RUNTIME(cudaGraphAddHostNode(&node, graph, after, after ? 1 : 0, &parameters));
  return node;
}

// Adds a node that waits, one that counts, and one that copies the count to the program.
static cudaGraphNode_t add_work(cudaGraph_t graph) {
  const cudaGraphNode_t first = add_stand(graph, nullptr, &before);
  void* arguments[] = {&device};
  cudaKernelNodeParams kernel{};
  kernel.func = reinterpret_cast<void*>(count);
  kernel.gridDim = kernel.blockDim = 1;
  kernel.kernelParams = arguments;
  cudaGraphNode_t counted, brought;
  CHECK_RUNTIME(cudaGraphAddKernelNode(&counted, graph, &first, 1, &kernel));
  CHECK_RUNTIME(
      cudaGraphAddMemcpyNode1D(&brought, graph, &counted, 1, host, device, kHostBytes, cudaMemcpyDeviceToHost));
  return brought;
}

// A whole graph around a node that records the event.
static cudaGraph_t graph_of(cudaEvent_t event, cudaGraphNode_t* record = nullptr) {
  cudaGraph_t graph = new_graph();
  const cudaGraphNode_t brought = add_work(graph);
  cudaGraphNode_t recorded;
  CHECK_RUNTIME(cudaGraphAddEventRecordNode(&recorded, graph, &brought, 1, event));
  add_stand(graph, &recorded, &behind);
  if (record) *record = recorded;
  return graph;
}

static cudaGraphExec_t executable(cudaGraph_t graph) {
  cudaGraphExec_t exec;
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, 0));
  CHECK_RUNTIME(cudaGraphDestroy(graph));
  return exec;
}

static void check(const char* way, cudaEvent_t event, cudaGraphExec_t exec) {
  expect(cudaEventQuery(event) == cudaSuccess, way, "nothing is pending before the first launch");
  for (int round = 0; round < 2; ++round) {
    CHECK_RUNTIME(cudaGraphLaunch(exec, stream));
    const int value = ++launches;
    expect(cudaEventQuery(event) == cudaErrorNotReady, way, "the launch records the event");
    CHECK_RUNTIME(cudaStreamWaitEvent(other, event, 0));
    CHECK_RUNTIME(cudaMemcpyAsync(pinned, device, sizeof *pinned, cudaMemcpyDeviceToHost, other));
    expect(cudaStreamQuery(other) == cudaErrorNotReady, way, "another stream waits for it");
    sem_post(&before);
    CHECK_RUNTIME(cudaEventSynchronize(event));
    expect(host[0] == value, way, "what came before the event is there");
    expect(cudaEventQuery(event) == cudaSuccess, way, "the event is done");
    expect(cudaStreamQuery(stream) == cudaErrorNotReady, way, "the graph is not");
    CHECK_RUNTIME(cudaStreamSynchronize(other));
    expect(*pinned == value, way, "what waited for it came behind it");
    float milliseconds = -1;
    expect(cudaEventElapsedTime(&milliseconds, event, event) == cudaSuccess && milliseconds == 0, way, "it has a time");
    sem_post(&behind);
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
  }
  // A record of the program's own, in a stream with nothing to do, counts from then on.
  CHECK_RUNTIME(cudaGraphLaunch(exec, stream));
  ++launches;
  CHECK_RUNTIME(cudaEventRecord(event, other));
  CHECK_RUNTIME(cudaStreamSynchronize(other));
  expect(cudaEventQuery(event) == cudaSuccess, way, "the newest record counts");
  sem_post(&before);
  sem_post(&behind);
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  CHECK_RUNTIME(cudaGraphExecDestroy(exec));
  CHECK_RUNTIME(cudaEventDestroy(event));
}

static void made_by_nodes() {
  cudaEvent_t event = new_event(), unused = new_event();
  check("a node", event, executable(graph_of(event)));

  event = new_event();
  cudaGraph_t graph = new_graph();
  cudaGraphNode_t brought = add_work(graph), record;
  cudaGraphNodeParams parameters{};
  parameters.type = cudaGraphNodeTypeEventRecord;
  parameters.eventRecord.event = event;
  CHECK_RUNTIME(cudaGraphAddNode(&record, graph, &brought, nullptr, 1, &parameters));
  add_stand(graph, &record, &behind);
  check("a generic node", event, executable(graph));

  event = new_event();
  graph = graph_of(unused, &record);
  CHECK_RUNTIME(cudaGraphEventRecordNodeSetEvent(record, event));
  cudaEvent_t asked = nullptr;
  CHECK_RUNTIME(cudaGraphEventRecordNodeGetEvent(record, &asked));
  expect(asked == event, "a node that is changed", "it tells its event");
  check("a node that is changed", event, executable(graph));

  event = new_event();
  graph = graph_of(unused, &record);
  parameters.eventRecord.event = event;
  CHECK_RUNTIME(cudaGraphNodeSetParams(record, &parameters));
  check("a node that is changed generically", event, executable(graph));
  CHECK_RUNTIME(cudaEventDestroy(unused));
}

static void made_by_changes() {
  cudaEvent_t event = new_event(), unused = new_event();
  cudaGraphNode_t record;
  cudaGraph_t graph = graph_of(unused, &record);
  cudaGraphExec_t exec;
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, 0));
  CHECK_RUNTIME(cudaGraphExecEventRecordNodeSetEvent(exec, record, event));
  check("an executable graph that is changed", event, exec);

  event = new_event();
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, 0));
  cudaGraph_t renewed = graph_of(event);
  cudaGraphExecUpdateResultInfo info{};
  CHECK_RUNTIME(cudaGraphExecUpdate(exec, renewed, &info));
  CHECK_RUNTIME(cudaGraphDestroy(renewed));
  check("an executable graph that is updated", event, exec);
  CHECK_RUNTIME(cudaGraphDestroy(graph));
  CHECK_RUNTIME(cudaEventDestroy(unused));
}

static void made_by_others() {
  cudaEvent_t event = new_event();
  cudaGraph_t inner = graph_of(event), graph = new_graph();
  cudaGraphNode_t child;
  CHECK_RUNTIME(cudaGraphAddChildGraphNode(&child, graph, nullptr, 0, inner));
  CHECK_RUNTIME(cudaGraphDestroy(inner));
  check("a child graph", event, executable(graph));

  event = new_event();
  inner = graph_of(event);
  CHECK_RUNTIME(cudaGraphClone(&graph, inner));
  CHECK_RUNTIME(cudaGraphDestroy(inner));
  check("a clone", event, executable(graph));
}

static void captured() {
  const char* const way = "an external record in a capture";
  cudaEvent_t event = new_event();
  expect(cudaEventRecordWithFlags(event, stream, cudaEventRecordExternal) == cudaErrorIllegalState, way,
         "outside of captures it is refused");
  expect(cudaStreamWaitEvent(stream, event, cudaEventWaitExternal) == cudaErrorIllegalState, way,
         "and so is an external wait");
  CHECK_RUNTIME(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  CHECK_RUNTIME(cudaLaunchHostFunc(stream, stand, &before));
  count<<<1, 1, 0, stream>>>(device);
  CHECK_RUNTIME(cudaMemcpyAsync(host, device, kHostBytes, cudaMemcpyDeviceToHost, stream));
  CHECK_RUNTIME(cudaEventRecordWithFlags(event, stream, cudaEventRecordExternal));
  expect(cudaEventQuery(event) == cudaSuccess, way, "the event stays what it was");
  CHECK_RUNTIME(cudaStreamWaitEvent(other, event, 0));
  cudaStreamCaptureStatus status;
  CHECK_RUNTIME(cudaStreamIsCapturing(other, &status));
  expect(status == cudaStreamCaptureStatusNone, way, "a stream that waits for the event takes no part");
  CHECK_RUNTIME(cudaStreamWaitEvent(stream, event, cudaEventWaitExternal));
  CHECK_RUNTIME(cudaLaunchHostFunc(stream, stand, &behind));
  cudaGraph_t graph;
  CHECK_RUNTIME(cudaStreamEndCapture(stream, &graph));
  check(way, event, executable(graph));
}

// An event that a capture has recorded is unusable after the capture, until a graph records it.
static void captured_before() {
  const char* const way = "an event of a capture that is over";
  cudaEvent_t event = new_event();
  cudaGraphExec_t exec = executable(graph_of(event));
  CHECK_RUNTIME(cudaStreamBeginCapture(other, cudaStreamCaptureModeRelaxed));
  CHECK_RUNTIME(cudaEventRecord(event, other));
  cudaGraph_t graph;
  CHECK_RUNTIME(cudaStreamEndCapture(other, &graph));
  CHECK_RUNTIME(cudaGraphDestroy(graph));
  expect(cudaEventQuery(event) == cudaErrorInvalidValue, way, "nothing can be asked of it");
  cudaGetLastError();
  CHECK_RUNTIME(cudaGraphLaunch(exec, stream));
  ++launches;
  expect(cudaEventQuery(event) == cudaErrorNotReady, way, "a launch records it");
  CHECK_RUNTIME(cudaStreamWaitEvent(other, event, 0));
  expect(cudaStreamQuery(other) == cudaErrorNotReady, way, "a stream waits for it");
  sem_post(&before);
  sem_post(&behind);
  CHECK_RUNTIME(cudaStreamSynchronize(other));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  expect(host[0] == launches, way, "the graph has run");
  CHECK_RUNTIME(cudaGraphExecDestroy(exec));
  CHECK_RUNTIME(cudaEventDestroy(event));
}

// The time between two nodes of one graph, which the program never records.
static void timed() {
  cudaEvent_t first = new_event(), last = new_event();
  cudaGraph_t graph = new_graph();
  cudaGraphNode_t begun, ended;
  CHECK_RUNTIME(cudaGraphAddEventRecordNode(&begun, graph, nullptr, 0, first));
  const cudaGraphNode_t stood = add_stand(graph, &begun, &before);
  CHECK_RUNTIME(cudaGraphAddEventRecordNode(&ended, graph, &stood, 1, last));
  cudaGraphExec_t exec = executable(graph);
  float milliseconds = -1;
  expect(cudaEventElapsedTime(&milliseconds, first, last) == cudaErrorInvalidResourceHandle, "two nodes",
         "there is no time before the launch");
  CHECK_RUNTIME(cudaGraphLaunch(exec, stream));
  CHECK_RUNTIME(cudaEventSynchronize(first));
  expect(cudaEventElapsedTime(&milliseconds, first, last) == cudaErrorNotReady, "two nodes", "the second stands");
  sem_post(&before);
  CHECK_RUNTIME(cudaEventSynchronize(last));
  expect(cudaEventElapsedTime(&milliseconds, first, last) == cudaSuccess && milliseconds > 0, "two nodes",
         "there is a time between them");
  CHECK_RUNTIME(cudaGraphExecDestroy(exec));
  CHECK_RUNTIME(cudaEventDestroy(first));
  CHECK_RUNTIME(cudaEventDestroy(last));
}

int main() {
  if (sem_init(&before, 0, 0) != 0 || sem_init(&behind, 0, 0) != 0) return 1;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  CHECK_RUNTIME(cudaMalloc(&device, kWords * sizeof(int)));
  CHECK_RUNTIME(cudaMallocHost(&pinned, sizeof *pinned));
  CHECK_RUNTIME(cudaMallocHost(&host, kHostBytes));
  count<<<1, 1>>>(device);  // loaded now, while no stream is blocked
  CHECK_RUNTIME(cudaMemset(device, 0, kWords * sizeof(int)));
  CHECK_RUNTIME(cudaDeviceSynchronize());
  made_by_nodes();
  made_by_changes();
  made_by_others();
  captured();
  captured_before();
  timed();
  std::printf("%s\n", all_right ? "PASSED" : "FAILED");
  return all_right ? 0 : 1;
}
