#include <atomic>
#include <thread>
#include <vector>

#include "test/server/software_device/driver/fixture.hpp"

using namespace gpuwire::software_device::test;

namespace {

CUstream make_stream(unsigned flags = CU_STREAM_DEFAULT) {
  CUstream out = nullptr;
  REQUIRE(cuStreamCreate(&out, flags) == CUDA_SUCCESS);
  return out;
}

void CUDA_CB append(void* user) {
  static_cast<std::vector<int>*>(user)->push_back(static_cast<int>(static_cast<std::vector<int>*>(user)->size()));
}

}  // namespace

TEST_CASE("Work of a stream is done in order") {
  const CurrentContext context;
  const CUfunction add_one = function(load(), "add_one");
  const CUdeviceptr word = allocate(4);
  const CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
  CHECK(cuMemsetD32Async(word, 10, 1, stream) == CUDA_SUCCESS);
  for (int i = 0; i < 500; ++i) {
    CHECK(launch_add_one(add_one, word, stream) == CUDA_SUCCESS);
  }
  unsigned value = 0;
  CHECK(cuMemcpyDtoHAsync(&value, word, sizeof value, stream) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(value == 510);
}

TEST_CASE("A stream is not ready while work is pending, and streams do not wait for each other") {
  const CurrentContext context;
  Barrier barrier;
  const CUstream busy = make_stream(), idle = make_stream();
  REQUIRE(cuLaunchHostFunc(busy, Barrier::wait, &barrier) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(busy) == CUDA_ERROR_NOT_READY);
  std::vector<int> calls;
  REQUIRE(cuLaunchHostFunc(idle, append, &calls) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(idle) == CUDA_SUCCESS);
  CHECK(calls.size() == 1);
  CHECK(cuStreamQuery(busy) == CUDA_ERROR_NOT_READY);
  barrier.gate.set_value();
  CHECK(cuStreamSynchronize(busy) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(busy) == CUDA_SUCCESS);
}

TEST_CASE("The legacy stream waits for blocking streams, they wait for it, and non-blocking ones do neither") {
  const CurrentContext context;
  Barrier barrier;
  const CUstream blocking = make_stream(), free = make_stream(CU_STREAM_NON_BLOCKING);
  REQUIRE(cuLaunchHostFunc(blocking, Barrier::wait, &barrier) == CUDA_SUCCESS);
  std::vector<int> legacy_calls, free_calls, later_calls;
  REQUIRE(cuLaunchHostFunc(CU_STREAM_LEGACY, append, &legacy_calls) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(nullptr) == CUDA_ERROR_NOT_READY);
  const CUstream later = make_stream();
  REQUIRE(cuLaunchHostFunc(later, append, &later_calls) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(later) == CUDA_ERROR_NOT_READY);
  REQUIRE(cuLaunchHostFunc(free, append, &free_calls) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(free) == CUDA_SUCCESS);
  CHECK(free_calls.size() == 1);
  barrier.gate.set_value();
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(legacy_calls.size() == 1);
  CHECK(later_calls.size() == 1);
}

TEST_CASE("Each thread has a per-thread stream of its own") {
  const CurrentContext context;
  unsigned long long here = 0, there = 0, legacy = 0;
  CHECK(cuStreamGetId(CU_STREAM_PER_THREAD, &here) == CUDA_SUCCESS);
  CHECK(cuStreamGetId(CU_STREAM_LEGACY, &legacy) == CUDA_SUCCESS);
  std::thread([&] {
    REQUIRE(cuCtxSetCurrent(context.handle) == CUDA_SUCCESS);
    CHECK(cuStreamGetId(CU_STREAM_PER_THREAD, &there) == CUDA_SUCCESS);
  }).join();
  CHECK(here != there);
  CHECK(here != legacy);
}

TEST_CASE("What a stream was created with can be asked for") {
  const CurrentContext context;
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -100) == CUDA_SUCCESS);
  unsigned flags = 0;
  int priority = 0;
  CUcontext owner = nullptr;
  CHECK(cuStreamGetFlags(stream, &flags) == CUDA_SUCCESS);
  CHECK(flags == CU_STREAM_NON_BLOCKING);
  CHECK(cuStreamGetPriority(stream, &priority) == CUDA_SUCCESS);
  CHECK(priority == -5);
  CHECK(cuStreamGetCtx(stream, &owner) == CUDA_SUCCESS);
  CHECK(owner == context.handle);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  CHECK(cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS);
  CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
  CHECK(cuStreamCreate(&stream, 4) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("A priority that is set or copied later is the stream's") {
  const CurrentContext context;
  CUstream stream = nullptr, other = nullptr;
  REQUIRE(cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&other, 0) == CUDA_SUCCESS);
  CUstreamAttrValue value{};
  value.priority = -2;
  CHECK(cuStreamSetAttribute(stream, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value) == CUDA_SUCCESS);
  CHECK(cuStreamCopyAttributes(other, stream) == CUDA_SUCCESS);
  for (CUstream each : {stream, other}) {
    int priority = 0;
    CHECK(cuStreamGetPriority(each, &priority) == CUDA_SUCCESS);
    CHECK(priority == -2);
  }
}

TEST_CASE("A destroyed stream's handle is invalid, and its work is done all the same") {
  const CurrentContext context;
  Barrier barrier;
  const CUstream stream = make_stream();
  std::vector<int> calls;
  REQUIRE(cuLaunchHostFunc(stream, Barrier::wait, &barrier) == CUDA_SUCCESS);
  REQUIRE(cuLaunchHostFunc(stream, append, &calls) == CUDA_SUCCESS);
  REQUIRE(cuStreamDestroy(stream) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(stream) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuStreamDestroy(stream) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuStreamDestroy(nullptr) == CUDA_ERROR_INVALID_HANDLE);
  barrier.gate.set_value();
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(calls.size() == 1);
}

TEST_CASE("Callbacks are told of the context's state") {
  const CurrentContext context;
  struct Seen {
    CUresult status = CUDA_ERROR_UNKNOWN;
    CUstream stream = nullptr;
  } seen;
  const CUstream stream = make_stream();
  REQUIRE(cuStreamAddCallback(
              stream,
              [](CUstream stream, CUresult status, void* user) {
                *static_cast<Seen*>(user) = {status, stream};
              },
              &seen, 0) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(seen.status == CUDA_SUCCESS);
  CHECK(seen.stream == stream);
}

TEST_CASE("Many threads may use one context at once") {
  const CurrentContext context;
  const CUfunction add_one = function(load(), "add_one");
  constexpr int kThreads = 4, kLaunches = 100;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      REQUIRE(cuCtxSetCurrent(context.handle) == CUDA_SUCCESS);
      const CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
      const CUdeviceptr word = allocate(4);
      CHECK(cuMemsetD32Async(word, 0, 1, stream) == CUDA_SUCCESS);
      for (int i = 0; i < kLaunches; ++i) {
        CHECK(launch_add_one(add_one, word, stream) == CUDA_SUCCESS);
      }
      CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
      CHECK(read(word, 1)[0] == kLaunches);
      CHECK(cuMemFree(word) == CUDA_SUCCESS);
      CHECK(cuStreamDestroy(stream) == CUDA_SUCCESS);
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

TEST_CASE("More work than a queue holds makes the caller wait, and is all done") {
  const CurrentContext context;
  const CUdeviceptr word = allocate(4);
  const CUstream stream = make_stream();
  for (unsigned i = 0; i <= 10000; ++i) {
    REQUIRE(cuMemsetD32Async(word, i, 1, stream) == CUDA_SUCCESS);
  }
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(read(word, 1)[0] == 10000);
}

namespace {

CUstreamBatchMemOpParams wait_for(CUdeviceptr word, unsigned value, unsigned flags = CU_STREAM_WAIT_VALUE_GEQ) {
  CUstreamBatchMemOpParams out{};
  out.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  out.waitValue.address = word;
  out.waitValue.value = value;
  out.waitValue.flags = flags;
  return out;
}

}  // namespace

TEST_CASE("A stream stands at a word until the host writes it") {
  const CurrentContext context;
  const CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
  void* memory = nullptr;
  REQUIRE(cuMemHostAlloc(&memory, 8, CU_MEMHOSTALLOC_DEVICEMAP) == CUDA_SUCCESS);
  auto& word = *static_cast<unsigned*>(memory);
  word = 3;
  const CUdeviceptr target = allocate(4);
  CHECK(cuStreamWaitValue32_v2(stream, reinterpret_cast<CUdeviceptr>(memory), 4, CU_STREAM_WAIT_VALUE_GEQ) ==
        CUDA_SUCCESS);
  CHECK(cuStreamWriteValue32_v2(stream, target, 9, CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
  std::atomic_ref<unsigned>(word).store(4, std::memory_order_release);
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  unsigned value = 0;
  CHECK(cuMemcpyDtoH_v2(&value, target, sizeof value) == CUDA_SUCCESS);
  CHECK(value == 9);
}

TEST_CASE("Operations on words that cannot be are refused") {
  const CurrentContext context;
  const CUstream stream = make_stream();
  const CUdeviceptr word = allocate(16);
  REQUIRE(cuMemsetD32_v2(word, 0, 4) == CUDA_SUCCESS);
  unsigned own = 0;
  CHECK(cuStreamWaitValue32_v2(stream, word + 2, 0, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuStreamWaitValue64_v2(stream, word + 4, 0, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuStreamWaitValue32_v2(stream, reinterpret_cast<CUdeviceptr>(&own), 0, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuStreamWaitValue32_v2(stream, word, 0, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuStreamWriteValue32_v2(stream, word, 0, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuStreamBatchMemOp_v2(stream, 0, nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  std::vector<CUstreamBatchMemOpParams> many(257, wait_for(word, 0));
  CHECK(cuStreamBatchMemOp_v2(stream, 257, many.data(), 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuStreamBatchMemOp_v2(stream, 256, many.data(), 0) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
}

TEST_CASE("A graph waits for words too") {
  const CurrentContext context;
  const CUdeviceptr word = allocate(4);
  REQUIRE(cuMemsetD32_v2(word, 0, 1) == CUDA_SUCCESS);
  CUgraph graph = nullptr;
  REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  CUstreamBatchMemOpParams operation = wait_for(word, 1, CU_STREAM_WAIT_VALUE_EQ);
  CUDA_BATCH_MEM_OP_NODE_PARAMS_v1 parameters{nullptr, 1, &operation, 0};
  CUgraphNode node = nullptr;
  REQUIRE(cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, &parameters) == CUDA_SUCCESS);
  CUgraphNodeType type{};
  CHECK(cuGraphNodeGetType(node, &type) == CUDA_SUCCESS);
  CHECK(type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
  CUgraphExec exec = nullptr;
  REQUIRE(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
  const CUstream stream = make_stream(CU_STREAM_NON_BLOCKING);
  const CUstream other = make_stream(CU_STREAM_NON_BLOCKING);
  CHECK(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
  CHECK(cuStreamWriteValue32_v2(other, word, 1, CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
}

namespace {

// Memory of a pool, managed memory, and memory that a graph has allocated and not freed.
std::vector<CUdeviceptr> memory_without_words(CUstream stream) {
  std::vector<CUdeviceptr> out(3);
  REQUIRE(cuMemAllocAsync(&out[0], 64, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemAllocManaged(&out[1], 64, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
  CUgraph graph = nullptr;
  REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  CUDA_MEM_ALLOC_NODE_PARAMS_v1 parameters{};
  parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  parameters.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  parameters.bytesize = 64;
  CUgraphNode node = nullptr;
  REQUIRE(cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &parameters) == CUDA_SUCCESS);
  CUgraphExec exec = nullptr;
  REQUIRE(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
  REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
  out[2] = parameters.dptr;
  return out;
}

CUstreamBatchMemOpParams write_to(CUdeviceptr word, unsigned value) {
  CUstreamBatchMemOpParams out{};
  out.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  out.writeValue.address = word;
  out.writeValue.value = value;
  return out;
}

CUgraphExec instantiate(CUgraph graph) {
  CUgraphExec exec = nullptr;
  REQUIRE(cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
  return exec;
}

}  // namespace

TEST_CASE("Streams write and await no words in memory of pools and graphs and in managed memory") {
  const CurrentContext context;
  const CUstream stream = make_stream();
  for (const CUdeviceptr word : memory_without_words(stream)) {
    CHECK(cuStreamWriteValue32_v2(stream, word, 1, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuStreamWriteValue64_v2(nullptr, word + 8, 1, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuStreamWaitValue32_v2(stream, word, 0, CU_STREAM_WAIT_VALUE_GEQ) == CUDA_ERROR_INVALID_VALUE);
    CUstreamBatchMemOpParams operations[] = {write_to(allocate(4), 1), write_to(word, 1)};
    CHECK(cuStreamBatchMemOp_v2(stream, 2, operations, 0) == CUDA_ERROR_INVALID_VALUE);
  }
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("The launch of a graph with words in memory that holds none is refused, and nothing of the graph runs") {
  const CurrentContext context;
  const CUstream stream = make_stream();
  const CUdeviceptr good = allocate(4);
  for (const CUdeviceptr word : memory_without_words(stream)) {
    write(good, {7});
    CUgraph graph = nullptr;
    REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
    CUstreamBatchMemOpParams first = write_to(good, 8), second = write_to(word, 1);
    CUDA_BATCH_MEM_OP_NODE_PARAMS_v1 parameters{nullptr, 1, &first, 0};
    CUgraphNode node = nullptr, behind = nullptr;
    REQUIRE(cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, &parameters) == CUDA_SUCCESS);
    parameters.paramArray = &second;
    REQUIRE(cuGraphAddBatchMemOpNode(&behind, graph, &node, 1, &parameters) == CUDA_SUCCESS);
    CHECK(cuGraphLaunch(instantiate(graph), stream) == CUDA_ERROR_INVALID_VALUE);

    const CUstream captured = make_stream(CU_STREAM_NON_BLOCKING);
    REQUIRE(cuStreamBeginCapture_v2(captured, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    CHECK(cuStreamWriteValue32_v2(captured, good, 9, 0) == CUDA_SUCCESS);
    CHECK(cuStreamWriteValue32_v2(captured, word, 9, 0) == CUDA_SUCCESS);
    CUgraph made = nullptr;
    REQUIRE(cuStreamEndCapture(captured, &made) == CUDA_SUCCESS);
    CHECK(cuGraphLaunch(instantiate(made), stream) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(read(good, 1)[0] == 7);
  }
}
