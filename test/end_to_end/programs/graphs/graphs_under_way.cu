// A launch's writes to the program's memory arrive, even if the graph, its stream or the memory's registration has
// ended since.
#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "../standing_stream.hpp"

namespace {

bool all_right = true;

void expect(bool condition, const char* what, const char* where) {
  if (!condition) std::printf("wrong: %s, %s\n", what, where);
  all_right &= condition;
}

constexpr size_t kBytes = 256u << 10;
constexpr size_t kBufferBytes = kBytes + 4096;

struct Buffer {
  const char* name;
  unsigned char* memory;
  unsigned char* elsewhere;  // memory of the same kind, of kBytes

  bool holds(int value) const {
    for (size_t i = 0; i < kBytes; ++i) {
      if (memory[i] != value) return false;
    }
    return true;
  }
};

// A graph of one copy from the device.
struct CopyGraph {
  cudaGraph_t graph = nullptr;
  cudaGraphNode_t node = nullptr;
  cudaGraphExec_t exec = nullptr;

  CopyGraph(const void* device, void* to) {
    CHECK_RUNTIME(cudaGraphCreate(&graph, 0));
    CHECK_RUNTIME(cudaGraphAddMemcpyNode1D(&node, graph, nullptr, 0, to, device, kBytes, cudaMemcpyDeviceToHost));
    CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, 0));
  }
  ~CopyGraph() {
    if (exec) CHECK_RUNTIME(cudaGraphExecDestroy(exec));
    CHECK_RUNTIME(cudaGraphDestroy(graph));
  }
  CopyGraph(const CopyGraph&) = delete;
  CopyGraph& operator=(const CopyGraph&) = delete;
};

void synchronise_by_event(cudaStream_t stream) {
  cudaEvent_t event;
  CHECK_RUNTIME(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  CHECK_RUNTIME(cudaEventRecord(event, stream));
  CHECK_RUNTIME(cudaEventSynchronize(event));
  CHECK_RUNTIME(cudaEventDestroy(event));
}

// `stands`: the stream is blocked while the launched graph is destroyed. Natively that works for pinned memory only: a
// launch with a copy to pageable memory returns only after the stream has reached it.
void check_results(const Buffer& buffer, unsigned char* device, StandingStream& stream, bool stands) {
  int value = 0;
  auto go = [&] {
    if (stands) stream.go();
  };
  auto begin = [&] {
    ++value;
    CHECK_RUNTIME(cudaMemset(device, value, kBytes));
    CHECK_RUNTIME(cudaDeviceSynchronize());
    std::memset(buffer.memory, 0, kBytes);
    if (stands) stream.stand();
  };
  unsigned char* const elsewhere = buffer.elsewhere;
  {
    CopyGraph graph(device, buffer.memory);
    begin();
    CHECK_RUNTIME(cudaGraphLaunch(graph.exec, stream));
    CHECK_RUNTIME(cudaGraphExecDestroy(graph.exec));
    graph.exec = nullptr;
  }
  go();
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  expect(buffer.holds(value), "after the graph was destroyed", buffer.name);

  {
    CopyGraph graph(device, buffer.memory), other(device, elsewhere);
    begin();
    CHECK_RUNTIME(cudaGraphLaunch(graph.exec, stream));
    cudaGraphExecUpdateResultInfo result;
    CHECK_RUNTIME(cudaGraphExecUpdate(graph.exec, other.graph, &result));
    go();
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
    expect(buffer.holds(value), "after the graph was updated", buffer.name);
    CHECK_RUNTIME(cudaGraphLaunch(graph.exec, stream));
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
    expect(elsewhere[0] == value && elsewhere[kBytes - 1] == value, "launched after the update", buffer.name);
  }
  {
    CopyGraph graph(device, buffer.memory);
    begin();
    CHECK_RUNTIME(cudaGraphLaunch(graph.exec, stream));
    CHECK_RUNTIME(
        cudaGraphExecMemcpyNodeSetParams1D(graph.exec, graph.node, elsewhere, device, kBytes, cudaMemcpyDeviceToHost));
    go();
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
    expect(buffer.holds(value), "after the node was changed", buffer.name);
  }
  {
    CopyGraph graph(device, buffer.memory);
    begin();
    CHECK_RUNTIME(cudaGraphLaunch(graph.exec, stream));
    stream.replace();
  }
  go();
  CHECK_RUNTIME(cudaDeviceSynchronize());
  expect(buffer.holds(value), "after graph and stream were destroyed", buffer.name);

  // The program learns the launch's end only by an event; then other graphs use a part of the memory.
  for (int round = 0; round < 40; ++round) {
    {
      CopyGraph graph(device, buffer.memory);
      begin();
      CHECK_RUNTIME(cudaGraphLaunch(graph.exec, stream));
    }
    go();
    synchronise_by_event(stream);
    expect(buffer.holds(value), "known by an event", buffer.name);
    CopyGraph beside(device, buffer.memory + 4 + 64 * round);
  }
}

// `release` must not return before the launch has ended. Another thread releases the stream, after enough time for an
// early return; it does so by a word of host memory, because a driver may lock out other calls meanwhile.
void check_release(const char* what, unsigned char* device, unsigned char* memory,
                   const std::function<void(unsigned char*)>& release) {
  cudaStream_t stream, other;
  unsigned* word;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  CHECK_RUNTIME(cudaHostAlloc(&word, sizeof *word, cudaHostAllocMapped));
  __atomic_store_n(word, 0, __ATOMIC_RELEASE);
  CopyGraph graph(device, memory);
  CHECK_DRIVER(cuStreamWaitValue32(stream, reinterpret_cast<CUdeviceptr>(word), 1, CU_STREAM_WAIT_VALUE_GEQ));
  CHECK_RUNTIME(cudaGraphLaunch(graph.exec, stream));
  std::atomic<bool> begins{false}, let_go{false};
  std::thread lets_go([&] {
    while (!begins.load()) sched_yield();
    for (int i = 0; i < 20000; ++i) sched_yield();
    let_go.store(true);
    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
    CHECK_RUNTIME(cudaMemsetAsync(device, 0, 1, other));  // the host's writes are sent with other work
  });
  begins.store(true);
  release(memory);
  const bool waited = let_go.load();
  lets_go.join();
  expect(waited, "came back before the launch had ended", what);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  CHECK_RUNTIME(cudaFreeHost(word));
  CHECK_RUNTIME(cudaStreamDestroy(stream));
  CHECK_RUNTIME(cudaStreamDestroy(other));
}

}  // namespace

int main() {
  StandingStream stream;
  unsigned char* device;
  CHECK_RUNTIME(cudaMalloc(&device, kBytes));
  std::vector<unsigned char> pageable(kBufferBytes), pageable_elsewhere(kBytes);
  unsigned char *pinned, *pinned_elsewhere;
  CHECK_RUNTIME(cudaMallocHost(&pinned, kBufferBytes));
  CHECK_RUNTIME(cudaMallocHost(&pinned_elsewhere, kBytes));
  check_results({"pageable memory", pageable.data(), pageable_elsewhere.data()}, device, stream, false);
  check_results({"pinned memory", pinned, pinned_elsewhere}, device, stream, true);

  check_release("cudaFreeHost", device, pinned, [](unsigned char* memory) { CHECK_RUNTIME(cudaFreeHost(memory)); });
  void* mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK_RUNTIME(cudaHostRegister(mapped, kBytes, cudaHostRegisterDefault));
  check_release("cudaHostUnregister", device, static_cast<unsigned char*>(mapped), [](unsigned char* memory) {
    CHECK_RUNTIME(cudaHostUnregister(memory));
    munmap(memory, kBytes);
  });
  std::printf("%s\n", all_right ? "PASSED" : "FAILED");
  return all_right ? 0 : 1;
}
