#include <algorithm>
#include <future>
#include <thread>
#include <vector>

#include "test/server/software_device/driver/fixture.hpp"

using namespace gpuwire::software_device::test;

namespace {

CUstream make_stream() {
  CUstream out = nullptr;
  REQUIRE(cuStreamCreate(&out, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  return out;
}

CUevent make_event() {
  CUevent out = nullptr;
  REQUIRE(cuEventCreate(&out, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
  return out;
}

CUgraphExec instantiate(CUgraph graph) {
  CUgraphExec out = nullptr;
  REQUIRE(cuGraphInstantiate(&out, graph, 0) == CUDA_SUCCESS);
  return out;
}

size_t node_count(CUgraph graph) {
  size_t count = 0;
  REQUIRE(cuGraphGetNodes(graph, nullptr, &count) == CUDA_SUCCESS);
  return count;
}

CUDA_KERNEL_NODE_PARAMS kernel_node(CUfunction function, void** parameters) {
  return {.func = function,
          .gridDimX = 1,
          .gridDimY = 1,
          .gridDimZ = 1,
          .blockDimX = 1,
          .blockDimY = 1,
          .blockDimZ = 1,
          .kernelParams = parameters};
}

}  // namespace

TEST_CASE("Captured work is not done until the graph is launched, and then each time anew") {
  const CurrentContext context;
  const CUfunction add_one = function(load(), "add_one");
  const CUdeviceptr word = allocate(4);
  write(word, {100});
  const CUstream stream = make_stream();
  REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CHECK(cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS);
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CHECK(launch_add_one(add_one, word, stream) == CUDA_SUCCESS);
  CHECK(launch_add_one(add_one, word, stream) == CUDA_SUCCESS);
  CUgraph graph = nullptr;
  REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  CHECK(read(word, 1)[0] == 100);
  CHECK(node_count(graph) == 2);
  const CUgraphExec exec = instantiate(graph);
  for (int i = 0; i < 10; ++i) {
    CHECK(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
  }
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(read(word, 1)[0] == 120);
  CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
  CHECK(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
  CHECK(cuGraphLaunch(exec, stream) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("A capture spreads to streams that wait for its events, and must come together again") {
  const CurrentContext context;
  const CUfunction add_one = function(load(), "add_one");
  const CUdeviceptr words = allocate(8);
  write(words, {0, 0});
  const CUstream first = make_stream(), second = make_stream();
  const CUevent fork = make_event(), join = make_event();
  const auto capture = [&](bool joined, CUgraph* graph) {
    REQUIRE(cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    CHECK(launch_add_one(add_one, words, first) == CUDA_SUCCESS);
    CHECK(cuEventRecord(fork, first) == CUDA_SUCCESS);
    CHECK(cuStreamWaitEvent(second, fork, 0) == CUDA_SUCCESS);
    CHECK(launch_add_one(add_one, words + 4, second) == CUDA_SUCCESS);
    CHECK(cuEventRecord(join, second) == CUDA_SUCCESS);
    if (joined) {
      CHECK(cuStreamWaitEvent(first, join, 0) == CUDA_SUCCESS);
    }
    return cuStreamEndCapture(first, graph);
  };
  CUgraph graph = nullptr;
  CHECK(capture(false, &graph) == CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  CHECK(graph == nullptr);
  REQUIRE(capture(true, &graph) == CUDA_SUCCESS);
  CHECK(cuEventQuery(join) == CUDA_ERROR_INVALID_VALUE);
  CHECK(node_count(graph) == 2);
  size_t edges = 0;
  CHECK(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges) == CUDA_SUCCESS);
  CHECK(edges == 1);
  CHECK(cuGraphLaunch(instantiate(graph), first) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(first) == CUDA_SUCCESS);
  CHECK(read(words, 2) == std::vector<unsigned>{1, 1});
  CHECK(cuStreamQuery(second) == CUDA_SUCCESS);
}

TEST_CASE("A captured stream refuses to synchronise, and the capture is then invalid") {
  const CurrentContext context;
  const CUstream stream = make_stream();
  CUgraph graph = nullptr;
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_ILLEGAL_STATE);
  const CUdeviceptr word = allocate(4);
  REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(cuMemsetD8Async(word, 0, 4, stream) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  CHECK(cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS);
  CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
  CHECK(cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

TEST_CASE("The legacy stream cannot wait for a blocking stream that is being captured") {
  const CurrentContext context;
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
  const CUdeviceptr word = allocate(4);
  REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CHECK(cuMemsetD8(word, 0, 4) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CUgraph graph = nullptr;
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(cuMemsetD8(word, 0, 4) == CUDA_SUCCESS);
}

TEST_CASE("What a capture may notice is forbidden by its mode and the calling thread's") {
  const CurrentContext context;
  const CUstream stream = make_stream();
  CUgraph graph = nullptr;
  CUdeviceptr memory = 0;
  const auto capture = [&](CUstreamCaptureMode mode) { REQUIRE(cuStreamBeginCapture(stream, mode) == CUDA_SUCCESS); };
  const auto in_another_thread = [](auto&& body) { std::thread(body).join(); };
  CUcontext current = nullptr;
  REQUIRE(cuCtxGetCurrent(&current) == CUDA_SUCCESS);

  capture(CU_STREAM_CAPTURE_MODE_RELAXED);
  CHECK(cuMemAlloc(&memory, 64) == CUDA_SUCCESS);
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);

  capture(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  in_another_thread([&] {
    CHECK(cuCtxSetCurrent(current) == CUDA_SUCCESS);
    CHECK(cuMemFree(memory) == CUDA_SUCCESS);
  });
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);

  capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
  in_another_thread([&] {
    CHECK(cuCtxSetCurrent(current) == CUDA_SUCCESS);
    CUdeviceptr other = 0;
    CHECK(cuMemAlloc(&other, 64) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  });
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

  capture(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

  capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
  in_another_thread([&] {
    CHECK(cuCtxSetCurrent(current) == CUDA_SUCCESS);
    CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  });
}

TEST_CASE("A graph built node by node runs in the order of its edges") {
  const CurrentContext context;
  const CUfunction add_one = function(load(), "add_one");
  CUdeviceptr word = allocate(4);
  unsigned result = 0;
  int calls = 0;
  CUgraph graph = nullptr;
  CUgraphNode fill = nullptr, kernel = nullptr, copy = nullptr, host = nullptr, empty = nullptr;
  REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  const CUDA_MEMSET_NODE_PARAMS fill_parameters{.dst = word, .value = 41, .elementSize = 4, .width = 1, .height = 1};
  REQUIRE(cuGraphAddMemsetNode(&fill, graph, nullptr, 0, &fill_parameters, context.handle) == CUDA_SUCCESS);
  void* parameters[] = {&word};
  const auto kernel_parameters = kernel_node(add_one, parameters);
  REQUIRE(cuGraphAddKernelNode(&kernel, graph, &fill, 1, &kernel_parameters) == CUDA_SUCCESS);
  CUDA_MEMCPY3D copy_parameters{};
  copy_parameters.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy_parameters.srcDevice = word;
  copy_parameters.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy_parameters.dstHost = &result;
  copy_parameters.WidthInBytes = 4;
  copy_parameters.Height = copy_parameters.Depth = 1;
  REQUIRE(cuGraphAddMemcpyNode(&copy, graph, nullptr, 0, &copy_parameters, context.handle) == CUDA_SUCCESS);
  REQUIRE(cuGraphAddDependencies(graph, &kernel, &copy, nullptr, 1) == CUDA_SUCCESS);
  CHECK(cuGraphAddDependencies(graph, &kernel, &copy, nullptr, 1) == CUDA_ERROR_INVALID_VALUE);
  const CUDA_HOST_NODE_PARAMS host_parameters{.fn = [](void* user) { ++*static_cast<int*>(user); }, .userData = &calls};
  REQUIRE(cuGraphAddHostNode(&host, graph, &copy, 1, &host_parameters) == CUDA_SUCCESS);
  REQUIRE(cuGraphAddEmptyNode(&empty, graph, &host, 1) == CUDA_SUCCESS);
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  CHECK(cuGraphNodeGetType(copy, &type) == CUDA_SUCCESS);
  CHECK(type == CU_GRAPH_NODE_TYPE_MEMCPY);
  CUDA_KERNEL_NODE_PARAMS back{};
  CHECK(cuGraphKernelNodeGetParams(kernel, &back) == CUDA_SUCCESS);
  CHECK(back.func == add_one);
  CHECK(*static_cast<CUdeviceptr*>(back.kernelParams[0]) == word);
  const CUgraphExec exec = instantiate(graph);
  CHECK(cuGraphLaunch(exec, nullptr) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(result == 42);
  CHECK(calls == 1);

  CUDA_MEMSET_NODE_PARAMS other = fill_parameters;
  other.value = 10;
  CHECK(cuGraphExecMemsetNodeSetParams(exec, fill, &other, context.handle) == CUDA_SUCCESS);
  CHECK(cuGraphLaunch(exec, nullptr) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(result == 11);
  CHECK(cuGraphNodeSetEnabled(exec, kernel, 0) == CUDA_SUCCESS);
  CHECK(cuGraphLaunch(exec, nullptr) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(result == 10);
}

TEST_CASE("A cycle cannot be instantiated, and a foreign node is no dependency") {
  const CurrentContext context;
  CUgraph graph = nullptr, other = nullptr;
  CUgraphNode a = nullptr, b = nullptr, foreign = nullptr;
  REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  REQUIRE(cuGraphCreate(&other, 0) == CUDA_SUCCESS);
  REQUIRE(cuGraphAddEmptyNode(&foreign, other, nullptr, 0) == CUDA_SUCCESS);
  CHECK(cuGraphAddEmptyNode(&a, graph, &foreign, 1) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuGraphAddEmptyNode(&a, graph, nullptr, 0) == CUDA_SUCCESS);
  REQUIRE(cuGraphAddEmptyNode(&b, graph, &a, 1) == CUDA_SUCCESS);
  REQUIRE(cuGraphAddDependencies(graph, &b, &a, nullptr, 1) == CUDA_SUCCESS);
  CUgraphExec exec = nullptr;
  CHECK(cuGraphInstantiate(&exec, graph, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGraphRemoveDependencies(graph, &b, &a, nullptr, 1) == CUDA_SUCCESS);
  CHECK(cuGraphInstantiate(&exec, graph, 0) == CUDA_SUCCESS);
}

TEST_CASE("A child graph is a copy, and its work comes before what follows it") {
  const CurrentContext context;
  const CUfunction add_one = function(load(), "add_one");
  CUdeviceptr word = allocate(4);
  write(word, {0});
  void* parameters[] = {&word};
  const auto node = kernel_node(add_one, parameters);
  CUgraph child = nullptr, graph = nullptr;
  CUgraphNode inner = nullptr, outer = nullptr, last = nullptr;
  REQUIRE(cuGraphCreate(&child, 0) == CUDA_SUCCESS);
  REQUIRE(cuGraphAddKernelNode(&inner, child, nullptr, 0, &node) == CUDA_SUCCESS);
  REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  REQUIRE(cuGraphAddChildGraphNode(&outer, graph, nullptr, 0, child) == CUDA_SUCCESS);
  CHECK(cuGraphDestroy(child) == CUDA_SUCCESS);
  const CUDA_MEMSET_NODE_PARAMS fill{.dst = word, .value = 7, .elementSize = 4, .width = 1, .height = 1};
  REQUIRE(cuGraphAddMemsetNode(&last, graph, &outer, 1, &fill, context.handle) == CUDA_SUCCESS);
  CHECK(cuGraphLaunch(instantiate(graph), nullptr) == CUDA_SUCCESS);
  CHECK(read(word, 1)[0] == 7);
  CUgraph held = nullptr;
  CHECK(cuGraphChildGraphNodeGetGraph(outer, &held) == CUDA_SUCCESS);
  CHECK(cuGraphDestroy(held) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("An executable graph takes over new parameters from a graph of the same shape only") {
  const CurrentContext context;
  const CUdeviceptr word = allocate(4);
  const auto fill_graph = [&](unsigned value, bool twice) {
    CUgraph graph = nullptr;
    CUgraphNode node = nullptr;
    REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
    const CUDA_MEMSET_NODE_PARAMS fill{.dst = word, .value = value, .elementSize = 4, .width = 1, .height = 1};
    REQUIRE(cuGraphAddMemsetNode(&node, graph, nullptr, 0, &fill, context.handle) == CUDA_SUCCESS);
    if (twice) {
      REQUIRE(cuGraphAddMemsetNode(&node, graph, &node, 1, &fill, context.handle) == CUDA_SUCCESS);
    }
    return graph;
  };
  const CUgraphExec exec = instantiate(fill_graph(1, false));
  CUgraphExecUpdateResultInfo info{};
  CHECK(cuGraphExecUpdate(exec, fill_graph(5, false), &info) == CUDA_SUCCESS);
  CHECK(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
  CHECK(cuGraphExecUpdate(exec, fill_graph(6, true), &info) == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  CHECK(cuGraphLaunch(exec, nullptr) == CUDA_SUCCESS);
  CHECK(read(word, 1)[0] == 5);
}

TEST_CASE("A capture into a graph ends without a place for that graph") {
  const CurrentContext context;
  const CUfunction add_one = function(load(), "add_one");
  const CUdeviceptr word = allocate(4);
  const CUstream stream = make_stream();
  CUgraph graph = nullptr;
  REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_GLOBAL) ==
          CUDA_SUCCESS);
  CHECK(launch_add_one(add_one, word, stream) == CUDA_SUCCESS);
  CHECK(cuStreamEndCapture(stream, nullptr) == CUDA_SUCCESS);
  CHECK(node_count(graph) == 1);
  REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  CHECK(cuStreamEndCapture(stream, nullptr) == CUDA_SUCCESS);
  CUgraph made = nullptr;
  CHECK(cuStreamEndCapture(stream, &made) == CUDA_ERROR_ILLEGAL_STATE);
}

TEST_CASE("memory that lies where a graph had some, whose context is over, is freed as any other") {
  constexpr size_t kBytes = 4 << 20, kTriesMax = 32;
  CUgraph graph = nullptr;
  CUdeviceptr of_graph = 0;
  {
    CurrentContext context;
    CUstream stream = nullptr;
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    REQUIRE(cuMemAllocAsync(&of_graph, kBytes, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  }
  CurrentContext context;
  std::vector<CUdeviceptr> blocks;
  do {
    blocks.push_back(allocate(kBytes));
  } while (blocks.back() != of_graph && blocks.size() < kTriesMax);
  REQUIRE(blocks.back() == of_graph);
  for (CUdeviceptr block : blocks) CHECK(cuMemFree(block) == CUDA_SUCCESS);
  CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

TEST_CASE("Memory that a graph allocates is there until the launch is done, though the graph is destroyed") {
  constexpr size_t kBytes = 4096;
  CurrentContext context;
  const CUstream stream = make_stream();
  CUgraph graph = nullptr;
  CUdeviceptr block = 0;
  REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  REQUIRE(cuMemAllocAsync(&block, kBytes, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8Async(block, 7, kBytes, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(block, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  const CUgraphExec exec = instantiate(graph);

  std::promise<void> gate;
  auto opened = gate.get_future();
  REQUIRE(cuLaunchHostFunc(
              stream, [](void* user) { static_cast<std::future<void>*>(user)->wait(); }, &opened) == CUDA_SUCCESS);
  REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
  CHECK(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
  CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  CHECK(cuMemGetAddressRange(&base, &bytes, block) == CUDA_SUCCESS);
  gate.set_value();
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
}
