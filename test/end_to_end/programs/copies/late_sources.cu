// A copy from pinned memory reads it only when its stream reaches the copy: earlier work may change the memory, or wait
// until the program has done so.
#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

#include "../standing_stream.hpp"

namespace {

bool all_right = true;

constexpr size_t kRows = 16, kRowBytes = 16u << 10, kBytes = kRows * kRowBytes;

__global__ void await_word(volatile unsigned* word) {
  while (*word == 0) {}
}
__global__ void fill(unsigned char* memory, unsigned char value) {
  for (size_t i = threadIdx.x; i < 4096; i += blockDim.x) memory[i] = value;
}

struct Source {
  const char* name;
  unsigned char* memory;
};

void CUDART_CB write_twos(void* memory) { std::memset(memory, 2, kBytes); }

// One way to copy kBytes to the device, and to have them back.
struct Way {
  const char* name;
  std::function<void(const unsigned char* source, cudaStream_t stream)> copy;
  std::function<void(unsigned char* out)> fetch;
};

struct Destinations {
  unsigned char* device;
  cudaArray_t line, rows;

  Destinations() {
    const cudaChannelFormatDesc bytes = cudaCreateChannelDesc<unsigned char>();
    CHECK_RUNTIME(cudaMalloc(&device, kBytes));
    CHECK_RUNTIME(cudaMallocArray(&rows, &bytes, kRowBytes, kRows));
    CHECK_RUNTIME(cudaMallocArray(&line, &bytes, kRowBytes));
  }
};

std::vector<Way> ways(const Destinations& to) {
  auto fetch_device = [to](unsigned char* out) {
    CHECK_RUNTIME(cudaMemcpy(out, to.device, kBytes, cudaMemcpyDeviceToHost));
  };
  return {
      {"cudaMemcpyAsync",
       [to](const unsigned char* source, cudaStream_t stream) {
         CHECK_RUNTIME(cudaMemcpyAsync(to.device, source, kBytes, cudaMemcpyHostToDevice, stream));
       },
       fetch_device},
      {"cudaMemcpy2DAsync",
       [to](const unsigned char* source, cudaStream_t stream) {
         CHECK_RUNTIME(cudaMemcpy2DAsync(to.device, kRowBytes, source, kRowBytes, kRowBytes, kRows,
                                         cudaMemcpyHostToDevice, stream));
       },
       fetch_device},
      {"cudaMemcpy2DToArrayAsync",
       [to](const unsigned char* source, cudaStream_t stream) {
         CHECK_RUNTIME(cudaMemcpy2DToArrayAsync(to.rows, 0, 0, source, kRowBytes, kRowBytes, kRows,
                                                cudaMemcpyHostToDevice, stream));
       },
       [to](unsigned char* out) {
         CHECK_RUNTIME(cudaMemcpy2DFromArray(out, kRowBytes, to.rows, 0, 0, kRowBytes, kRows, cudaMemcpyDeviceToHost));
       }},
      {"cuMemcpyHtoAAsync",
       [to](const unsigned char* source, cudaStream_t stream) {
         CHECK_DRIVER(cuMemcpyHtoAAsync(reinterpret_cast<CUarray>(to.line), 0, source, kRowBytes, stream));
       },
       [to](unsigned char* out) {
         CHECK_DRIVER(cuMemcpyAtoH(out, reinterpret_cast<CUarray>(to.line), 0, kRowBytes));
         for (size_t row = 1; row < kRows; ++row) std::memcpy(out + row * kRowBytes, out, kRowBytes);
       }},
  };
}

// The program's work before the copy, and after it.
struct Order {
  const char* name;
  std::function<void(unsigned char*source)> before, behind;
};

void check(const Source& source, const std::vector<Way>& all_ways, const std::vector<Order>& orders,
           cudaStream_t stream) {
  std::vector<unsigned char> back(kBytes);
  for (const Order& order : orders) {
    for (const Way& way : all_ways) {
      std::memset(source.memory, 1, kBytes);
      order.before(source.memory);
      way.copy(source.memory, stream);
      order.behind(source.memory);
      CHECK_RUNTIME(cudaDeviceSynchronize());
      way.fetch(back.data());
      size_t wrong = 0;
      for (unsigned char byte : back) wrong += byte != 2;
      if (wrong) std::printf("wrong: %s of %s %s: %zu bytes\n", way.name, source.name, order.name, wrong);
      all_right &= wrong == 0;
    }
  }
}

void check_all(const Source& source, const Destinations& to, StandingStream& stream) {
  cudaStream_t other;
  cudaEvent_t event;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  CHECK_RUNTIME(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  unsigned char* twos;
  CHECK_RUNTIME(cudaMalloc(&twos, kBytes));
  CHECK_RUNTIME(cudaMemset(twos, 2, kBytes));
  cudaGraph_t graph;
  cudaGraphNode_t node;
  cudaGraphExec_t exec;
  cudaHostNodeParams calls{write_twos, source.memory};
  CHECK_RUNTIME(cudaGraphCreate(&graph, 0));
  CHECK_RUNTIME(cudaGraphAddHostNode(&node, graph, nullptr, 0, &calls));
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, 0));
  cudaGraph_t captured;
  cudaGraphExec_t captured_exec;
  CHECK_RUNTIME(cudaStreamBeginCapture(other, cudaStreamCaptureModeThreadLocal));
  CHECK_RUNTIME(cudaLaunchHostFunc(other, write_twos, source.memory));
  CHECK_RUNTIME(cudaStreamEndCapture(other, &captured));
  CHECK_RUNTIME(cudaGraphInstantiate(&captured_exec, captured, 0));
  unsigned* word;
  CHECK_RUNTIME(cudaHostAlloc(&word, sizeof *word, cudaHostAllocMapped));
  *word = 1;
  await_word<<<1, 1, 0, stream>>>(word);  // loaded here, because no load is possible while a stream is blocked
  CHECK_RUNTIME(cudaDeviceSynchronize());

  auto nothing = [](unsigned char*) {};
  auto go = [&](unsigned char*) { stream.go(); };
  const std::vector<Order> orders = {
      {"behind a word", [&](unsigned char*) { stream.stand(); },
       [&](unsigned char* memory) {
         std::memset(memory, 2, kBytes);
         stream.go();
       }},
      {"behind a stream that stands at a word",
       [&](unsigned char*) {
         stream.stand();
         CHECK_RUNTIME(cudaEventRecord(event, stream));
         CHECK_RUNTIME(cudaStreamWaitEvent(other, event, 0));
       },
       [&](unsigned char* memory) {
         std::memset(memory, 2, kBytes);
         stream.go();
       }},
      {"behind a host function",
       [&](unsigned char* memory) {
         stream.stand();
         CHECK_RUNTIME(cudaLaunchHostFunc(stream, write_twos, memory));
       },
       go},
      {"behind a host node",
       [&](unsigned char*) {
         stream.stand();
         CHECK_RUNTIME(cudaGraphLaunch(exec, stream));
       },
       go},
      {"behind a host function of a graph",
       [&](unsigned char*) {
         stream.stand();
         CHECK_RUNTIME(cudaGraphLaunch(captured_exec, stream));
       },
       go},
      {"behind a host node that nothing holds up",
       [&](unsigned char*) { CHECK_RUNTIME(cudaGraphLaunch(exec, stream)); }, nothing},
      {"behind a copy from the device",
       [&](unsigned char* memory) {
         stream.stand();
         CHECK_RUNTIME(cudaMemcpyAsync(memory, twos, kBytes, cudaMemcpyDeviceToHost, stream));
       },
       go},
      {"behind a kernel that waits for a word of the host",
       [&](unsigned char*) {
         __atomic_store_n(word, 0, __ATOMIC_RELEASE);
         await_word<<<1, 1, 0, stream>>>(word);
       },
       [&](unsigned char* memory) {
         std::memset(memory, 2, kBytes);
         __atomic_store_n(word, 1, __ATOMIC_RELEASE);
       }},
  };
  const auto all_ways = ways(to);
  for (const Order& order : orders)
    check(source, all_ways, {order}, order.name == orders[1].name ? other : cudaStream_t(stream));
  CHECK_RUNTIME(cudaFreeHost(word));
  CHECK_RUNTIME(cudaFree(twos));
}

// Small pinned memory that kernels write, and an array that is filled from it.
void check_mapped(const Destinations& to, StandingStream& stream) {
  unsigned char* mapped;
  constexpr size_t kSmall = 4096;
  CHECK_RUNTIME(cudaHostAlloc(&mapped, kSmall, cudaHostAllocMapped));
  fill<<<1, 256, 0, stream>>>(mapped, 1);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  std::vector<unsigned char> back(kSmall);
  for (unsigned char value = 2; value < 10; ++value) {
    fill<<<1, 256, 0, stream>>>(mapped, value);
    CHECK_DRIVER(cuMemcpyHtoAAsync(reinterpret_cast<CUarray>(to.line), 0, mapped, kSmall, stream));
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
    CHECK_DRIVER(cuMemcpyAtoH(back.data(), reinterpret_cast<CUarray>(to.line), 0, kSmall));
    if (back != std::vector<unsigned char>(kSmall, value)) {
      std::printf("wrong: cuMemcpyHtoAAsync of what a kernel has written\n");
      all_right = false;
    }
  }
  CHECK_RUNTIME(cudaFreeHost(mapped));
}

// Copies of rows to pinned memory return before the stream reaches them, too.
void check_rows_back(unsigned char* pinned, const Destinations& to, StandingStream& stream) {
  CHECK_RUNTIME(cudaMemset(to.device, 3, kBytes));
  CHECK_RUNTIME(cudaMemcpy2DToArray(to.rows, 0, 0, to.device, kRowBytes, kRowBytes, kRows, cudaMemcpyDeviceToDevice));
  CHECK_RUNTIME(cudaDeviceSynchronize());
  for (bool from_array : {false, true}) {
    std::memset(pinned, 0, kBytes);
    stream.stand();
    if (from_array) {
      CHECK_RUNTIME(cudaMemcpy2DFromArrayAsync(pinned, kRowBytes, to.rows, 0, 0, kRowBytes, kRows,
                                               cudaMemcpyDeviceToHost, stream));
    } else {
      CHECK_RUNTIME(cudaMemcpy2DAsync(pinned, kRowBytes, to.device, kRowBytes, kRowBytes / 2, kRows,
                                      cudaMemcpyDeviceToHost, stream));
    }
    stream.go();
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
    const size_t last = (kRows - 1) * kRowBytes;
    const bool right =
        pinned[0] == 3 && pinned[last + kRowBytes / 2 - 1] == 3 && pinned[last + kRowBytes - 1] == (from_array ? 3 : 0);
    if (!right) std::printf("wrong: rows %s\n", from_array ? "of an array" : "of device memory");
    all_right &= right;
  }
}

}  // namespace

int main() {
  StandingStream stream;
  Destinations to;
  check_mapped(to, stream);
  unsigned char* pinned;
  CHECK_RUNTIME(cudaMallocHost(&pinned, kBytes));
  check_all({"pinned memory", pinned}, to, stream);
  check_rows_back(pinned, to, stream);
  CHECK_RUNTIME(cudaFreeHost(pinned));
  void* mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK_RUNTIME(cudaHostRegister(mapped, kBytes, cudaHostRegisterDefault));
  check_all({"registered memory", static_cast<unsigned char*>(mapped)}, to, stream);
  CHECK_RUNTIME(cudaHostUnregister(mapped));
  munmap(mapped, kBytes);
  std::printf("%s\n", all_right ? "PASSED" : "FAILED");
  return all_right ? 0 : 1;
}
