// Blocking copies of a few KiB from pinned memory copy its contents at the time when the stream reaches them, after
// earlier writes by kernels, copies, fills, host functions, graphs. With "loop" the program makes only such copies,
// each of other data in the same memory. Ends with PASSED.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "../../../support/cuda_check.hpp"

constexpr size_t kCount = 1024;
constexpr size_t kBytes = kCount * sizeof(uint32_t);
constexpr uint32_t kSteps = 200'000;  // long enough to detect a copy that does not wait

__global__ void write_late(uint32_t* values, uint32_t value, uint32_t steps) {
  uint32_t state = value;
  for (uint32_t i = 0; i < steps; ++i) state = state * 1664525u + 1013904223u;
  values[threadIdx.x] = state == 0x12345678u ? state : value;
}

__global__ void sum_up(const uint32_t* values, uint64_t* sum) {
  if (threadIdx.x == 0)
    for (size_t i = 0; i < kCount; ++i) *sum += values[i];
}

struct Memory {
  uint32_t *source = nullptr, *other = nullptr, *device = nullptr, *second = nullptr;
  uint64_t* sum = nullptr;
  std::vector<uint32_t> seen = std::vector<uint32_t>(kCount);
};

void CUDART_CB fill_it(void* memory) {
  for (size_t i = 0; i < kCount; ++i) static_cast<uint32_t*>(memory)[i] = 31;
}

void fill(uint32_t* memory, uint32_t value) {
  for (size_t i = 0; i < kCount; ++i) memory[i] = value;
}

// The device's memory has this everywhere.
int expect(Memory& memory, uint32_t value) {
  fill(memory.seen.data(), 0);
  CHECK_RUNTIME(cudaMemcpy(memory.seen.data(), memory.device, kBytes, cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < kCount; ++i) EXPECT(memory.seen[i] == value);
  return 0;
}

int written_before(Memory& memory, cudaStream_t stream) {
  fill(memory.source, 1);
  write_late<<<1, kCount>>>(memory.source, 11, kSteps);
  CHECK_RUNTIME(cudaMemcpy(memory.device, memory.source, kBytes, cudaMemcpyHostToDevice));
  if (expect(memory, 11)) return 1;

  // In a stream that the NULL stream waits for.
  fill(memory.source, 1);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  write_late<<<1, kCount, 0, stream>>>(memory.source, 12, kSteps);
  CHECK_RUNTIME(cudaMemcpy(memory.device, memory.source, kBytes, cudaMemcpyHostToDevice));
  if (expect(memory, 12)) return 1;

  fill(memory.source, 1);
  write_late<<<1, kCount, 0, stream>>>(memory.second, 21, kSteps);
  CHECK_RUNTIME(cudaMemcpyAsync(memory.source, memory.second, kBytes, cudaMemcpyDeviceToHost, stream));
  CHECK_RUNTIME(cudaMemcpy(memory.device, memory.source, kBytes, cudaMemcpyHostToDevice));
  if (expect(memory, 21)) return 1;

  fill(memory.source, 1);
  write_late<<<1, kCount, 0, stream>>>(memory.second, 22, kSteps);
  CHECK_RUNTIME(cudaLaunchHostFunc(stream, fill_it, memory.source));
  CHECK_RUNTIME(cudaMemcpy(memory.device, memory.source, kBytes, cudaMemcpyHostToDevice));
  if (expect(memory, 31)) return 1;

  fill(memory.source, 1);
  write_late<<<1, kCount, 0, stream>>>(memory.second, 23, kSteps);
  CHECK_RUNTIME(cudaMemsetAsync(memory.source, 0x29, kBytes, stream));
  CHECK_RUNTIME(cudaMemcpy(memory.device, memory.source, kBytes, cudaMemcpyHostToDevice));
  if (expect(memory, 0x29292929u)) return 1;

  // Out of pinned memory into pinned memory, and on.
  fill(memory.other, 42);
  write_late<<<1, kCount, 0, stream>>>(memory.second, 24, kSteps);
  CHECK_RUNTIME(cudaMemcpyAsync(memory.source, memory.other, kBytes, cudaMemcpyDefault, stream));
  CHECK_RUNTIME(cudaMemcpy(memory.device, memory.source, kBytes, cudaMemcpyHostToDevice));
  return expect(memory, 42);
}

int written_by_a_graph(Memory& memory, cudaStream_t stream) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK_RUNTIME(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  write_late<<<1, kCount, 0, stream>>>(memory.source, 51, kSteps);
  CHECK_RUNTIME(cudaStreamEndCapture(stream, &graph));
  CHECK_RUNTIME(cudaGraphInstantiate(&executable, graph, 0));
  for (int round = 0; round < 3; ++round) {
    fill(memory.source, 1);
    CHECK_RUNTIME(cudaGraphLaunch(executable, stream));
    CHECK_RUNTIME(cudaMemcpy(memory.device, memory.source, kBytes, cudaMemcpyHostToDevice));
    if (expect(memory, 51)) return 1;
  }
  CHECK_RUNTIME(cudaGraphExecDestroy(executable));
  CHECK_RUNTIME(cudaGraphDestroy(graph));
  return 0;
}

// Into memory that the program can read itself.
int to_the_program(Memory& memory) {
  uint32_t* mapped = nullptr;
  CHECK_RUNTIME(cudaHostGetDevicePointer(&mapped, memory.other, 0));
  fill(memory.source, 61);
  fill(memory.other, 1);
  CHECK_RUNTIME(cudaMemcpy(mapped, memory.source, kBytes, cudaMemcpyHostToDevice));
  for (size_t i = 0; i < kCount; ++i) EXPECT(memory.other[i] == 61);
  return 0;
}

int loop(Memory& memory, int rounds) {
  uint64_t wanted = 0;
  CHECK_RUNTIME(cudaMemset(memory.sum, 0, sizeof *memory.sum));
  CHECK_RUNTIME(cudaDeviceSynchronize());
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < kCount; ++i) memory.source[i] = uint32_t(round * 7 + i);
    CHECK_RUNTIME(cudaMemcpy(memory.device, memory.source, kBytes, cudaMemcpyHostToDevice));
    std::memset(memory.source, 0xff, kBytes);  // it is over
  }
  for (size_t i = 0; i < kCount; ++i) wanted += uint32_t((rounds - 1) * 7 + i);
  sum_up<<<1, 1>>>(memory.device, memory.sum);
  uint64_t sum = 0;
  CHECK_RUNTIME(cudaMemcpy(&sum, memory.sum, sizeof sum, cudaMemcpyDeviceToHost));
  EXPECT(sum == wanted);
  return 0;
}

// Each copy's data are used before the next.
int used_each(Memory& memory) {
  uint64_t wanted = 0, sum = 0;
  CHECK_RUNTIME(cudaMemset(memory.sum, 0, sizeof *memory.sum));
  for (uint32_t round = 0; round < 20; ++round) {
    fill(memory.source, round);
    CHECK_RUNTIME(cudaMemcpy(memory.device, memory.source, kBytes, cudaMemcpyHostToDevice));
    fill(memory.source, 0xffffffff);
    sum_up<<<1, 1>>>(memory.device, memory.sum);
    wanted += round * kCount;
  }
  CHECK_RUNTIME(cudaMemcpy(&sum, memory.sum, sizeof sum, cudaMemcpyDeviceToHost));
  EXPECT(sum == wanted);
  return 0;
}

// Around the size that is copied at once natively.
int sizes(Memory& memory) {
  constexpr size_t kMost = 80'000;
  unsigned char *source = nullptr, *device = nullptr;
  CHECK_RUNTIME(cudaMallocHost(&source, kMost));
  CHECK_RUNTIME(cudaMalloc(&device, kMost));
  std::vector<unsigned char> seen(kMost);
  for (size_t bytes : {size_t(1), size_t(4095), size_t(65535), size_t(65536), size_t(65537), kMost}) {
    for (size_t i = 0; i < bytes; ++i) source[i] = static_cast<unsigned char>(i * 31 + bytes);
    CHECK_RUNTIME(cudaMemcpy(device, source, bytes, cudaMemcpyHostToDevice));
    std::memset(source, 0, bytes);
    CHECK_RUNTIME(cudaMemcpy(seen.data(), device, bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < bytes; ++i) EXPECT(seen[i] == static_cast<unsigned char>(i * 31 + bytes));
  }
  CHECK_RUNTIME(cudaFree(device));
  CHECK_RUNTIME(cudaFreeHost(source));
  return loop(memory, 10);
}

int main(int argc, char** argv) {
  Memory memory;
  CHECK_RUNTIME(cudaMallocHost(&memory.source, kBytes));
  CHECK_RUNTIME(cudaMallocHost(&memory.other, kBytes));
  CHECK_RUNTIME(cudaMalloc(&memory.device, kBytes));
  CHECK_RUNTIME(cudaMalloc(&memory.second, kBytes));
  CHECK_RUNTIME(cudaMalloc(&memory.sum, sizeof *memory.sum));
  if (argc > 1 && std::strcmp(argv[1], "loop") == 0) {
    if (loop(memory, 1000)) return 1;
  } else {
    cudaStream_t stream;
    CHECK_RUNTIME(cudaStreamCreate(&stream));
    for (int round = 0; round < 3; ++round) {
      if (written_before(memory, stream) || written_by_a_graph(memory, stream) || to_the_program(memory) ||
          loop(memory, 100) || used_each(memory) || sizes(memory))
        return 1;
    }
    CHECK_RUNTIME(cudaStreamDestroy(stream));
  }
  std::printf("PASSED\n");
  return 0;
}
