// Memory that was freed a moment ago: a program cannot observe whether it is cached for the next allocation.
#include <cstring>
#include <thread>
#include <vector>

#include "../../../support/cuda_check.hpp"

namespace {

constexpr size_t kMiB = 1 << 20;

__global__ void fill(unsigned* data, unsigned value, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] = value;
}
// Writes again and again, so that it still runs when its memory is freed.
__global__ void fill_long(unsigned* data, unsigned value, unsigned count, unsigned rounds) {
  volatile unsigned* seen = data;
  for (unsigned round = 0; round < rounds; ++round) seen[threadIdx.x % count] = value;
}

__global__ void wait_for(const volatile unsigned* word) {
  while (*word == 0) {}
}

size_t free_bytes() {
  size_t free = 0, total = 0;
  CHECK_RUNTIME(cudaMemGetInfo(&free, &total));
  return free;
}

void all_are(const unsigned* device, unsigned value, unsigned count) {
  std::vector<unsigned> host(count);
  CHECK_RUNTIME(cudaMemcpy(host.data(), device, count * sizeof(unsigned), cudaMemcpyDeviceToHost));
  for (unsigned each : host) EXPECT(each == value);
}

// Freed memory is reported as free. Other programs may use the device, too, but none allocates and frees exactly this
// much.
void free_memory_is_told(cudaStream_t stream) {
  void* memory;
  CHECK_RUNTIME(cudaMallocAsync(&memory, 8 * kMiB, stream));  // the pool has reached its size
  CHECK_RUNTIME(cudaFreeAsync(memory, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  const size_t before = free_bytes();
  CHECK_RUNTIME(cudaMalloc(&memory, 8 * kMiB));
  EXPECT(free_bytes() + 8 * kMiB <= before);
  CHECK_RUNTIME(cudaFree(memory));
  EXPECT(free_bytes() == before);
  CHECK_RUNTIME(cudaMallocAsync(&memory, 8 * kMiB, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  EXPECT(free_bytes() < before);
  CHECK_RUNTIME(cudaFreeAsync(memory, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  EXPECT(free_bytes() == before);
}

// Like freed memory, prefetched memory is reported as free.
void memory_ahead_is_told_to_be_free() {
  constexpr int kBlocks = 12;
  constexpr size_t kBytes = 2 * kMiB;
  void* blocks[kBlocks];
  const size_t before = free_bytes();
  for (int i = 0; i < kBlocks; ++i) {
    CHECK_RUNTIME(cudaMalloc(&blocks[i], kBytes));
    if (i % 4 == 1) CHECK_RUNTIME(cudaDeviceSynchronize());
    if (i % 4 == 3) EXPECT(free_bytes() == before - size_t(i + 1) * kBytes);
  }
  for (void* block : blocks) CHECK_RUNTIME(cudaFree(block));
  EXPECT(free_bytes() == before);
}

void freed_addresses_are_refused() {
  unsigned char *memory, *other;
  CHECK_RUNTIME(cudaMalloc(&other, 8 * kMiB));
  CHECK_RUNTIME(cudaMemset(other, 1, 8 * kMiB));
  CHECK_RUNTIME(cudaMalloc(&memory, 8 * kMiB));
  CHECK_RUNTIME(cudaFree(memory));
  EXPECT(cudaFree(memory) == cudaErrorInvalidValue);
  EXPECT(cudaMemcpy(other, memory, 1, cudaMemcpyDeviceToDevice) == cudaErrorInvalidValue);
  CHECK_RUNTIME(cudaMalloc(&memory, 8 * kMiB));
  CHECK_RUNTIME(cudaFree(memory));
  EXPECT(cudaMemset(memory + 5, 1, 1) == cudaErrorInvalidValue);
  cudaPointerAttributes attributes;
  CHECK_RUNTIME(cudaPointerGetAttributes(&attributes, memory));
  EXPECT(attributes.type == cudaMemoryTypeUnregistered);
  cudaGetLastError();
  CHECK_RUNTIME(cudaFree(other));
}

// Cached memory is available to an allocation that would not fit otherwise.
void nothing_is_short() {
  std::vector<void*> held;
  void *memory, *all;
  for (int i = 0; i < 6; ++i) {
    CHECK_RUNTIME(cudaMalloc(&memory, (6 + i) * kMiB));
    held.push_back(memory);
  }
  const size_t most = free_bytes() - 4 * kMiB;
  for (void* each : held) CHECK_RUNTIME(cudaFree(each));
  CHECK_RUNTIME(cudaMalloc(&all, most + 32 * kMiB));
  CHECK_RUNTIME(cudaFree(all));
}

// The first kernel still runs when its memory is freed, and ends before another stream writes the memory.
void work_has_ended_before_memory_is_used_again(cudaStream_t first, cudaStream_t second) {
  constexpr unsigned kCount = 64;
  unsigned* memory;
  CHECK_RUNTIME(cudaMalloc(&memory, kCount * sizeof *memory));
  fill_long<<<1, kCount, 0, first>>>(memory, 1, kCount, 50000);
  CHECK_RUNTIME(cudaFree(memory));
  CHECK_RUNTIME(cudaMalloc(&memory, kCount * sizeof *memory));
  fill<<<1, kCount, 0, second>>>(memory, 2, kCount);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  all_are(memory, 2, kCount);
  CHECK_RUNTIME(cudaFree(memory));
}

// The kernel ends only when the program has done more: calls that natively wait for no work must not wait for it.
void work_that_needs_the_program(cudaStream_t first, cudaStream_t second) {
  unsigned* word;
  void *memory, *kept, *held[4];
  CHECK_RUNTIME(cudaMalloc(&word, sizeof *word));
  CHECK_RUNTIME(cudaMemset(word, 0, sizeof *word));
  CHECK_RUNTIME(cudaMallocAsync(&memory, kMiB, second));
  for (void*& each : held) CHECK_RUNTIME(cudaMalloc(&each, 3 * kMiB));
  CHECK_RUNTIME(cudaMalloc(&kept, 5 * kMiB));
  CHECK_RUNTIME(cudaFree(kept));
  CHECK_RUNTIME(cudaDeviceSynchronize());
  wait_for<<<1, 1, 0, first>>>(word);
  free_bytes();
  cudaStream_t another;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&another, cudaStreamNonBlocking));
  CHECK_RUNTIME(cudaFreeAsync(memory, second));
  cudaMemPool_t pool;
  size_t value = 0;
  CHECK_RUNTIME(cudaDeviceGetDefaultMemPool(&pool, 0));
  CHECK_RUNTIME(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &value));
  CHECK_RUNTIME(cudaMemsetAsync(word, 1, sizeof *word, second));
  CHECK_RUNTIME(cudaStreamSynchronize(first));
  CHECK_RUNTIME(cudaStreamDestroy(another));
  for (void* each : held) CHECK_RUNTIME(cudaFree(each));
  CHECK_RUNTIME(cudaFree(word));
}

// Blocks of one size, one after the other: each is memory of its own.
void many_of_a_size() {
  constexpr unsigned kCount = 1024, kBlocks = 40;
  unsigned* blocks[kBlocks];
  for (unsigned i = 0; i < kBlocks; ++i) {
    CHECK_RUNTIME(cudaMalloc(&blocks[i], kCount * sizeof(unsigned)));
    fill<<<4, 256>>>(blocks[i], i, kCount);
    if (i % 3 == 0) CHECK_RUNTIME(cudaDeviceSynchronize());
    if (i % 16 == 5) {
      CHECK_RUNTIME(cudaFree(blocks[i]));
      CHECK_RUNTIME(cudaMalloc(&blocks[i], kCount * sizeof(unsigned)));
      fill<<<4, 256>>>(blocks[i], i, kCount);
    }
  }
  for (unsigned i = 0; i < kBlocks; ++i) all_are(blocks[i], i, kCount);
  for (unsigned* block : blocks) CHECK_RUNTIME(cudaFree(block));
}

void loops(cudaStream_t stream) {
  for (unsigned i = 0; i < 100; ++i) {
    const unsigned count = 1024 << (i % 3);
    unsigned *plain, *ordered;
    CHECK_RUNTIME(cudaMalloc(&plain, count * sizeof *plain));
    CHECK_RUNTIME(cudaMallocAsync(&ordered, count * sizeof *ordered, stream));
    EXPECT(plain != ordered);
    fill<<<(count + 255) / 256, 256, 0, stream>>>(ordered, i, count);
    fill<<<(count + 255) / 256, 256>>>(plain, ~i, count);
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
    all_are(ordered, i, count);
    all_are(plain, ~i, count);
    CHECK_RUNTIME(cudaFreeAsync(ordered, stream));
    CHECK_RUNTIME(cudaFree(plain));
  }
}

// Each thread has memory of its own.
void threads() {
  std::vector<std::thread> all;
  for (unsigned thread = 0; thread < 4; ++thread) {
    all.emplace_back([thread] {
      cudaStream_t stream;
      CHECK_RUNTIME(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      for (unsigned i = 0; i < 50; ++i) {
        unsigned *plain, *ordered;
        CHECK_RUNTIME(cudaMalloc(&plain, 4096));
        CHECK_RUNTIME(cudaMallocAsync(&ordered, 4096, stream));
        fill<<<4, 256, 0, stream>>>(plain, 1000 * thread + i, 1024);
        fill<<<4, 256, 0, stream>>>(ordered, 1000 * thread + i, 1024);
        CHECK_RUNTIME(cudaStreamSynchronize(stream));
        all_are(plain, 1000 * thread + i, 1024);
        all_are(ordered, 1000 * thread + i, 1024);
        CHECK_RUNTIME(cudaFreeAsync(ordered, stream));
        CHECK_RUNTIME(cudaFree(plain));
      }
      CHECK_RUNTIME(cudaStreamDestroy(stream));
    });
  }
  for (std::thread& each : all) each.join();
}

// A capture in a stream with earlier stream-ordered frees does not contain them.
void captures(cudaStream_t stream) {
  void* memory;
  CHECK_RUNTIME(cudaMallocAsync(&memory, kMiB, stream));
  CHECK_RUNTIME(cudaFreeAsync(memory, stream));
  CHECK_RUNTIME(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  void* plain;
  CHECK_RUNTIME(cudaMalloc(&plain, kMiB));
  CHECK_RUNTIME(cudaFree(plain));
  cudaGraph_t graph;
  CHECK_RUNTIME(cudaStreamEndCapture(stream, &graph));
  size_t nodes = 1;
  CHECK_RUNTIME(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT(nodes == 0);
  CHECK_RUNTIME(cudaGraphDestroy(graph));
}

void a_reset_ends_all() {
  void* memory;
  CHECK_RUNTIME(cudaMalloc(&memory, kMiB));
  CHECK_RUNTIME(cudaFree(memory));
  CHECK_RUNTIME(cudaDeviceReset());
  unsigned* again;
  CHECK_RUNTIME(cudaMalloc(&again, kMiB));
  fill<<<1, 256>>>(again, 5, 256);
  all_are(again, 5, 256);
  CHECK_RUNTIME(cudaFree(again));
}

// Frees memory, prints that, and makes no call until its input ends.
void lie_idle() {
  void* memory;
  CHECK_RUNTIME(cudaMalloc(&memory, 24 * kMiB));
  CHECK_RUNTIME(cudaFree(memory));
  std::printf("freed\n");
  std::fflush(stdout);
  while (std::getchar() != EOF) {}
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "idle") == 0) {
    lie_idle();
    std::printf("PASSED\n");
    return 0;
  }
  cudaStream_t first, second;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  if (argc > 1 && std::strcmp(argv[1], "alone") == 0) {
    memory_ahead_is_told_to_be_free();
    free_memory_is_told(first);
    nothing_is_short();
  }
  freed_addresses_are_refused();
  work_has_ended_before_memory_is_used_again(first, second);
  work_that_needs_the_program(first, second);
  many_of_a_size();
  loops(first);
  threads();
  captures(first);
  a_reset_ends_all();
  std::printf("PASSED\n");
  return 0;
}
