// A free waits for all work of the context: its results are visible, its host functions have returned, and queries
// report it as done (as measured on driver 580). Free memory excludes the program's allocations.
#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

#include <cuda_runtime.h>

#include "../../../../examples/check.hpp"

namespace {

bool all_right = true;

void expect(bool condition, const char* what, const char* where) {
  if (!condition) std::printf("wrong: %s, %s\n", what, where);
  all_right &= condition;
}

constexpr size_t kBytes = 1u << 20;

// Long enough that the program returns first if the call does not wait.
__global__ void work_long(unsigned* out) {
  unsigned value = *out;
  for (unsigned i = 0; i < 2000000; ++i) value = value * 1664525u + 1013904223u;
  *out = value;
}

struct Memory {
  void* pointer = nullptr;
  cudaArray_t array = nullptr;
};

struct Way {
  const char* name;
  std::function<void(Memory&)> make, give_up;
};

const Way kWays[] = {
    {"cudaFree", [](Memory& m) { CHECK_RUNTIME(cudaMalloc(&m.pointer, 512)); },
     [](Memory& m) { CHECK_RUNTIME(cudaFree(m.pointer)); }},
    {"cudaFree of much", [](Memory& m) { CHECK_RUNTIME(cudaMalloc(&m.pointer, 40u << 20)); },
     [](Memory& m) { CHECK_RUNTIME(cudaFree(m.pointer)); }},
    {"cudaFreeHost", [](Memory& m) { CHECK_RUNTIME(cudaMallocHost(&m.pointer, kBytes)); },
     [](Memory& m) { CHECK_RUNTIME(cudaFreeHost(m.pointer)); }},
    {"cudaHostUnregister",
     [](Memory& m) {
       m.pointer = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
       CHECK_RUNTIME(cudaHostRegister(m.pointer, kBytes, cudaHostRegisterDefault));
     },
     [](Memory& m) {
       CHECK_RUNTIME(cudaHostUnregister(m.pointer));
       munmap(m.pointer, kBytes);
     }},
    {"cudaFreeArray",
     [](Memory& m) {
       const cudaChannelFormatDesc bytes = cudaCreateChannelDesc<unsigned char>();
       CHECK_RUNTIME(cudaMallocArray(&m.array, &bytes, 64, 64));
     },
     [](Memory& m) { CHECK_RUNTIME(cudaFreeArray(m.array)); }},
    // The last one: from here on the client waits for more.
    {"cudaFree of managed memory", [](Memory& m) { CHECK_RUNTIME(cudaMallocManaged(&m.pointer, kBytes)); },
     [](Memory& m) { CHECK_RUNTIME(cudaFree(m.pointer)); }},
};

size_t free_bytes() {
  size_t free = 0, total = 0;
  CHECK_RUNTIME(cudaMemGetInfo(&free, &total));
  return free;
}

void check_info(cudaStream_t stream, unsigned* word) {
  constexpr size_t kFreed = 4u << 20, kTaken = 64u << 20;
  for (bool behind : {false, true}) {
    void *freed, *taken;
    CHECK_RUNTIME(cudaMalloc(&freed, kFreed));
    CHECK_RUNTIME(cudaDeviceSynchronize());
    const size_t before = free_bytes();
    work_long<<<1, 1, 0, stream>>>(word);
    CHECK_RUNTIME(cudaFree(freed));
    if (behind) work_long<<<1, 1, 0, stream>>>(word);
    const size_t then = free_bytes();
    CHECK_RUNTIME(cudaMalloc(&taken, kTaken));
    const size_t after = free_bytes();
    expect(then - before == kFreed, "free memory did not rise by what was freed", behind ? "work behind" : "no work");
    expect(then - after == kTaken, "free memory did not fall by what was taken", behind ? "work behind" : "no work");
    CHECK_RUNTIME(cudaFree(taken));
  }
  CHECK_RUNTIME(cudaDeviceSynchronize());
}

}  // namespace

int main() {
  cudaStream_t stream;
  cudaEvent_t event;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK_RUNTIME(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  unsigned char* device;
  unsigned* word;
  CHECK_RUNTIME(cudaMalloc(&device, kBytes));
  CHECK_RUNTIME(cudaMalloc(&word, sizeof *word));
  CHECK_RUNTIME(cudaMemset(device, 7, kBytes));
  CHECK_RUNTIME(cudaMemset(word, 0, sizeof *word));
  work_long<<<1, 1, 0, stream>>>(word);  // loads the kernel
  CHECK_RUNTIME(cudaDeviceSynchronize());
  check_info(stream, word);

  std::vector<unsigned char> pageable(kBytes);
  unsigned char* pinned;
  CHECK_RUNTIME(cudaMallocHost(&pinned, kBytes));
  cudaGraph_t graph;
  cudaGraphNode_t node;
  cudaGraphExec_t exec;
  CHECK_RUNTIME(cudaGraphCreate(&graph, 0));
  CHECK_RUNTIME(
      cudaGraphAddMemcpyNode1D(&node, graph, nullptr, 0, pageable.data(), device, kBytes, cudaMemcpyDeviceToHost));
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, 0));

  static bool called;
  struct Work {
    const char* name;
    std::function<void()> send;
    std::function<bool()> seen;
  };
  const Work works[] = {
      {"a kernel", [] {}, [] { return true; }},
      {"a copy to pinned memory",
       [&] { CHECK_RUNTIME(cudaMemcpyAsync(pinned, device, kBytes, cudaMemcpyDeviceToHost, stream)); },
       [&] { return pinned[0] == 7 && pinned[kBytes - 1] == 7; }},
      {"a graph", [&] { CHECK_RUNTIME(cudaGraphLaunch(exec, stream)); },
       [&] { return pageable[0] == 7 && pageable[kBytes - 1] == 7; }},
      {"a host function",
       [&] {
         CHECK_RUNTIME(cudaLaunchHostFunc(
             stream, [](void*) { called = true; }, nullptr));
       },
       [] { return called; }},
  };
  for (const Way& way : kWays) {
    for (const Work& work : works) {
      Memory memory;
      way.make(memory);
      std::memset(pinned, 0, kBytes);
      std::memset(pageable.data(), 0, kBytes);
      called = false;
      CHECK_RUNTIME(cudaDeviceSynchronize());
      work_long<<<1, 1, 0, stream>>>(word);
      work.send();
      CHECK_RUNTIME(cudaEventRecord(event, stream));
      way.give_up(memory);
      expect(work.seen(), way.name, work.name);
      expect(cudaEventQuery(event) == cudaSuccess, "the event is not done", way.name);
      expect(cudaStreamQuery(stream) == cudaSuccess, "the stream is not done", way.name);
    }
  }
  std::printf("%s\n", all_right ? "PASSED" : "FAILED");
  return all_right ? 0 : 1;
}
