// Child graphs, clones, updates and uploads of graphs, their text form, objects that live as long as a graph, and edges
// with data.
#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>

#include "../../../../examples/check.hpp"

static bool all_right = true;

static void expect(bool condition, const char* what) {
  if (!condition) std::printf("wrong: %s\n", what);
  all_right &= condition;
}

__global__ void add(int* data, int value) { data[0] += value; }
__global__ void multiply(int* data, int value) { data[0] *= value; }

static cudaStream_t stream;
static int* device;

static int value_of(cudaGraphExec_t exec) {
  CHECK_RUNTIME(cudaMemsetAsync(device, 0, sizeof(int), stream));
  CHECK_RUNTIME(cudaGraphLaunch(exec, stream));
  int value = -1;
  CHECK_RUNTIME(cudaMemcpyAsync(&value, device, sizeof value, cudaMemcpyDeviceToHost, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  return value;
}

template <class Body>
static cudaGraph_t capture(Body body) {
  cudaGraph_t graph;
  CHECK_RUNTIME(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  body();
  CHECK_RUNTIME(cudaStreamEndCapture(stream, &graph));
  return graph;
}

static std::atomic<int> destroyed{0};
static void CUDART_CB destroy(void* user) { destroyed += *static_cast<int*>(user); }

static void objects() {
  int weight = 7;
  cudaUserObject_t object;
  cudaGraph_t graph = capture([] { add<<<1, 1, 0, stream>>>(device, 1); }), clone;
  CHECK_RUNTIME(cudaUserObjectCreate(&object, &weight, destroy, 1, cudaUserObjectNoDestructorSync));
  CHECK_RUNTIME(cudaUserObjectRetain(object, 2));
  CHECK_RUNTIME(cudaGraphRetainUserObject(graph, object, 1, 0));
  CHECK_RUNTIME(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove));
  CHECK_RUNTIME(cudaUserObjectRelease(object, 2));
  CHECK_RUNTIME(cudaGraphReleaseUserObject(graph, object, 1));
  CHECK_RUNTIME(cudaGraphClone(&clone, graph));
  cudaGraphExec_t exec;
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, 0));
  CHECK_RUNTIME(cudaGraphDestroy(graph));
  CHECK_RUNTIME(cudaGraphDestroy(clone));
  expect(value_of(exec) == 1, "the graph runs");
  expect(destroyed == 0, "an executable graph holds what its graph held");
  CHECK_RUNTIME(cudaGraphExecDestroy(exec));
  while (destroyed == 0) {  // whoever runs this ends it when it hangs
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
    std::this_thread::yield();
  }
  expect(destroyed == 7, "the last one destroys it");
}

// An update retains the other graph's objects and releases the executable graph's former ones.
static void updated_objects() {
  static int weights[] = {100, 1000};
  cudaGraph_t graphs[2];
  for (int i = 0; i < 2; ++i) {
    graphs[i] = capture([&] { add<<<1, 1, 0, stream>>>(device, i + 1); });
    cudaUserObject_t object;
    CHECK_RUNTIME(cudaUserObjectCreate(&object, &weights[i], destroy, 1, cudaUserObjectNoDestructorSync));
    CHECK_RUNTIME(cudaGraphRetainUserObject(graphs[i], object, 1, cudaGraphUserObjectMove));
  }
  destroyed = 0;
  cudaGraphExec_t exec;
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, graphs[0], 0));
  CHECK_RUNTIME(cudaGraphDestroy(graphs[0]));
  cudaGraphExecUpdateResultInfo result;
  CHECK_RUNTIME(cudaGraphExecUpdate(exec, graphs[1], &result));
  CHECK_RUNTIME(cudaGraphDestroy(graphs[1]));
  while (destroyed == 0) {  // whoever runs this ends it when it hangs
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
    std::this_thread::yield();
  }
  expect(destroyed == 100, "an update gives back what the executable graph held");
  expect(value_of(exec) == 2, "the updated graph runs");
  CHECK_RUNTIME(cudaGraphExecDestroy(exec));
  while (destroyed == 100) {
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
    std::this_thread::yield();
  }
  expect(destroyed == 1100, "an executable graph holds what it was updated with");
}

static void text() {
  cudaGraph_t graph = capture([] {
    add<<<1, 1, 0, stream>>>(device, 1);
    multiply<<<1, 1, 0, stream>>>(device, 2);
  });
  char name[] = P_tmpdir "/graph-text-XXXXXX";
  int file = mkstemp(name);
  expect(file >= 0, "a temporary file");
  CHECK_RUNTIME(cudaGraphDebugDotPrint(graph, name, cudaGraphDebugDotFlagsVerbose));
  std::string text;
  if (FILE* written = std::fopen(name, "r")) {
    char part[256];
    while (size_t got = std::fread(part, 1, sizeof part, written)) text.append(part, got);
    std::fclose(written);
  }
  std::remove(name);
  expect(text.find("digraph") != std::string::npos && text.find("->") != std::string::npos, "a graph is told as text");
  std::printf("text where it cannot be written: %s\n",
              cudaGetErrorName(cudaGraphDebugDotPrint(graph, "/nonexistent/folder/file", 0)));
  cudaGetLastError();
  CHECK_RUNTIME(cudaGraphDestroy(graph));
}

static void edges() {
  cudaGraph_t graph;
  CHECK_RUNTIME(cudaGraphCreate(&graph, 0));
  int value = 4;
  void* pointers[] = {&device, &value};
  cudaKernelNodeParams adding{};
  adding.func = reinterpret_cast<void*>(add);
  adding.gridDim = 1;
  adding.blockDim = 1;
  adding.kernelParams = pointers;
  cudaGraphNode_t first, second;
  CHECK_RUNTIME(cudaGraphAddKernelNode(&first, graph, nullptr, 0, &adding));
  adding.func = reinterpret_cast<void*>(multiply);
  CHECK_RUNTIME(cudaGraphAddKernelNode(&second, graph, nullptr, 0, &adding));
  cudaGraphEdgeData data{};
  data.from_port = cudaGraphKernelNodePortProgrammatic;
  data.type = cudaGraphDependencyTypeProgrammatic;
  cudaError_t added = cudaGraphAddDependencies(graph, &first, &second, &data, 1);
  std::printf("a programmatic edge: %s\n", cudaGetErrorName(added));
  if (added == cudaSuccess) {
    cudaGraphNode_t from, to;
    cudaGraphEdgeData told{};
    size_t count = 1;
    CHECK_RUNTIME(cudaGraphGetEdges(graph, &from, &to, &told, &count));
    expect(count == 1 && from == first && to == second && told.type == data.type && told.from_port == data.from_port,
           "an edge keeps its data");
    CHECK_RUNTIME(cudaGraphRemoveDependencies(graph, &first, &second, &data, 1));
  }
  CHECK_RUNTIME(cudaGraphAddDependencies(graph, &first, &second, nullptr, 1));
  cudaGraphExec_t exec;
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, 0));
  expect(value_of(exec) == 16, "a plain edge orders");
  CHECK_RUNTIME(cudaGraphExecDestroy(exec));
  CHECK_RUNTIME(cudaGraphDestroy(graph));
}

int main() {
  CHECK_RUNTIME(cudaStreamCreate(&stream));
  CHECK_RUNTIME(cudaMalloc(&device, 4 * sizeof(int)));
  cudaGraph_t inner = capture([] { add<<<1, 1, 0, stream>>>(device, 3); });
  cudaGraph_t outer;
  cudaGraphNode_t child, again;
  CHECK_RUNTIME(cudaGraphCreate(&outer, 0));
  CHECK_RUNTIME(cudaGraphAddChildGraphNode(&child, outer, nullptr, 0, inner));
  CHECK_RUNTIME(cudaGraphAddChildGraphNode(&again, outer, &child, 1, inner));
  cudaGraph_t within;
  CHECK_RUNTIME(cudaGraphChildGraphNodeGetGraph(child, &within));
  expect(within != inner, "a child graph is a copy");
  cudaGraphNode_t node;
  size_t one = 1;
  CHECK_RUNTIME(cudaGraphGetNodes(within, &node, &one));
  cudaKernelNodeParams asked{};
  CHECK_RUNTIME(cudaGraphKernelNodeGetParams(node, &asked));
  expect(asked.kernelParams && *static_cast<int*>(asked.kernelParams[1]) == 3, "a child's node can be asked");
  int ten = 10;
  void* pointers[] = {&device, &ten};
  asked.kernelParams = pointers;
  CHECK_RUNTIME(cudaGraphKernelNodeSetParams(node, &asked));
  cudaGraphExec_t exec;
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, outer, 0));
  expect(value_of(exec) == 13, "child graphs run in order");
  cudaGraph_t other = capture([] { add<<<1, 1, 0, stream>>>(device, 100); });
  CHECK_RUNTIME(cudaGraphExecChildGraphNodeSetParams(exec, child, other));
  expect(value_of(exec) == 103, "a child is replaced in an executable graph");
  CHECK_RUNTIME(cudaGraphExecDestroy(exec));

  cudaGraph_t clone;
  cudaGraphNode_t found;
  CHECK_RUNTIME(cudaGraphClone(&clone, outer));
  CHECK_RUNTIME(cudaGraphNodeFindInClone(&found, again, clone));
  CHECK_RUNTIME(cudaGraphDestroyNode(found));
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, clone, cudaGraphInstantiateFlagUseNodePriority));
  unsigned long long flags = 0;
  CHECK_RUNTIME(cudaGraphExecGetFlags(exec, &flags));
  std::printf("flags %llu\n", flags);
  CHECK_RUNTIME(cudaGraphUpload(exec, stream));
  expect(value_of(exec) == 10, "a clone is changed by itself");
  CHECK_RUNTIME(cudaGraphExecDestroy(exec));

  cudaGraph_t row = capture([] {
    add<<<1, 1, 0, stream>>>(device, 1);
    multiply<<<1, 1, 0, stream>>>(device, 5);
  });
  cudaGraphInstantiateParams parameters{};
  parameters.flags = cudaGraphInstantiateFlagUpload;
  parameters.uploadStream = stream;
  CHECK_RUNTIME(cudaGraphInstantiateWithParams(&exec, row, &parameters));
  expect(parameters.result_out == cudaGraphInstantiateSuccess && value_of(exec) == 5, "instantiated with an upload");
  cudaGraph_t changed = capture([] {
    add<<<1, 1, 0, stream>>>(device, 2);
    multiply<<<1, 1, 0, stream>>>(device, 8);
  });
  cudaGraphExecUpdateResultInfo info{};
  CHECK_RUNTIME(cudaGraphExecUpdate(exec, changed, &info));
  expect(info.result == cudaGraphExecUpdateSuccess && value_of(exec) == 16, "an update brings new parameters");
  cudaGraph_t longer = capture([] {
    add<<<1, 1, 0, stream>>>(device, 2);
    add<<<1, 1, 0, stream>>>(device, 2);
    add<<<1, 1, 0, stream>>>(device, 2);
  });
  cudaError_t refused = cudaGraphExecUpdate(exec, longer, &info);
  std::printf("an update by another shape: %s, %d\n", cudaGetErrorName(refused), int(info.result));
  cudaGetLastError();
  expect(value_of(exec) == 16, "a refused update changes nothing");
  for (cudaGraph_t each : {inner, outer, other, clone, row, changed, longer}) CHECK_RUNTIME(cudaGraphDestroy(each));
  CHECK_RUNTIME(cudaGraphExecDestroy(exec));
  objects();
  updated_objects();
  text();
  edges();
  std::printf("%s\n", all_right ? "PASSED" : "FAILED");
  return all_right ? 0 : 1;
}
