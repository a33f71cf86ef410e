// Pinned host memory used by the device under the program's own pointers: both directions, several rounds, every way to
// get it.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <sys/mman.h>

#include "../../../support/cuda_check.hpp"

__global__ void add(const uint32_t* in, uint32_t* out, uint32_t amount, unsigned count) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = in[i] + amount;
}

// The device writes every second byte only.
__global__ void mark_odd(uint8_t* bytes, unsigned count, uint8_t value) {
  unsigned i = 2 * (blockIdx.x * blockDim.x + threadIdx.x) + 1;
  if (i < count) bytes[i] = value;
}

namespace {

constexpr unsigned kCount = 5000;
constexpr size_t kBytes = kCount * sizeof(uint32_t);
constexpr unsigned kBlocks = (kCount + 127) / 128;

// The program writes, the device adds, the program reads; `in` and `out` may be the same memory.
void rounds(uint32_t* in, uint32_t* out, uint32_t* device_in, uint32_t* device_out) {
  cudaEvent_t event;
  CHECK_RUNTIME(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  for (uint32_t round = 0; round < 6; ++round) {
    for (unsigned i = 0; i < kCount; ++i) in[i] = i * 7 + round * 1000003;
    add<<<kBlocks, 128>>>(device_in, device_out, round + 1, kCount);
    CHECK_RUNTIME(cudaGetLastError());
    if (round % 3 == 0) CHECK_RUNTIME(cudaDeviceSynchronize());
    if (round % 3 == 1) CHECK_RUNTIME(cudaStreamSynchronize(nullptr));
    if (round % 3 == 2) {
      CHECK_RUNTIME(cudaEventRecord(event));
      cudaError_t queried;
      while ((queried = cudaEventQuery(event)) == cudaErrorNotReady) {}
      CHECK_RUNTIME(queried);
    }
    for (unsigned i = 0; i < kCount; ++i) EXPECT(out[i] == i * 7 + round * 1000003 + round + 1);
  }
  CHECK_RUNTIME(cudaEventDestroy(event));
}

void mapped_memory() {
  uint32_t *in, *out, *device_in, *device_out;
  CHECK_RUNTIME(cudaHostAlloc(&in, kBytes, cudaHostAllocMapped));
  CHECK_RUNTIME(cudaHostAlloc(&out, kBytes, cudaHostAllocMapped));
  CHECK_RUNTIME(cudaHostGetDevicePointer(&device_in, in, 0));
  CHECK_RUNTIME(cudaHostGetDevicePointer(&device_out, out, 0));
  EXPECT(device_in == in && device_out == out);
  uint32_t* inside;
  CHECK_RUNTIME(cudaHostGetDevicePointer(&inside, in + 3, 0));
  EXPECT(inside == in + 3);
  rounds(in, out, device_in, device_out);
  rounds(in, in, device_in, device_in);
  CHECK_RUNTIME(cudaFreeHost(in));
  CHECK_RUNTIME(cudaFreeHost(out));
}

// Without a flag: the pointer itself, as unified addressing promises.
void small_default_memory() {
  uint32_t* memory;
  CHECK_RUNTIME(cudaHostAlloc(&memory, kBytes, cudaHostAllocDefault));
  rounds(memory, memory, memory, memory);
  CHECK_RUNTIME(cudaFreeHost(memory));
  uint32_t* word;
  CHECK_RUNTIME(cudaMallocHost(&word, sizeof *word));
  *word = 41;
  add<<<1, 32>>>(word, word, 1, 1);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  EXPECT(*word == 42);
  CHECK_RUNTIME(cudaFreeHost(word));
}

void large_memory() {
  constexpr unsigned kMany = 1u << 20;
  uint32_t *memory, *device;
  CHECK_RUNTIME(cudaHostAlloc(&memory, kMany * sizeof *memory, cudaHostAllocDefault));
  for (unsigned i = 0; i < kMany; ++i) memory[i] = i;
  CHECK_RUNTIME(cudaHostGetDevicePointer(&device, memory, 0));
  EXPECT(device == memory);
  add<<<kMany / 256, 256>>>(device, device, 5, kMany);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  for (unsigned i = 0; i < kMany; ++i) EXPECT(memory[i] == i + 5);
  CHECK_RUNTIME(cudaFreeHost(memory));
}

void fills_and_copies() {
  uint8_t *host, *device;
  CHECK_RUNTIME(cudaHostAlloc(&host, 4096, cudaHostAllocPortable));
  CHECK_RUNTIME(cudaMalloc(&device, 4096));
  std::memset(host, 1, 4096);
  CHECK_RUNTIME(cudaMemsetAsync(host, 0xa5, 2048));
  CHECK_RUNTIME(cudaDeviceSynchronize());
  for (unsigned i = 0; i < 4096; ++i) EXPECT(host[i] == (i < 2048 ? 0xa5 : 1));
  // The device writes what a copy in the same stream reads, and the other way round.
  CHECK_RUNTIME(cudaMemsetAsync(host, 3, 4096));
  CHECK_RUNTIME(cudaMemcpyAsync(device, host, 4096, cudaMemcpyHostToDevice));
  CHECK_RUNTIME(cudaMemsetAsync(host, 4, 4096));
  CHECK_RUNTIME(cudaMemcpyAsync(host, device, 2048, cudaMemcpyDeviceToHost));
  mark_odd<<<8, 128>>>(host, 2048, 9);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  for (unsigned i = 0; i < 4096; ++i) EXPECT(host[i] == (i >= 2048 ? 4 : i % 2 ? 9 : 3));
  // Copies without a stream argument.
  CHECK_RUNTIME(cudaMemsetAsync(host, 6, 4096));
  CHECK_RUNTIME(cudaMemcpy(device, host, 4096, cudaMemcpyHostToDevice));
  std::memset(host, 0, 4096);
  CHECK_RUNTIME(cudaMemcpy(host, device, 4096, cudaMemcpyDeviceToHost));
  for (unsigned i = 0; i < 4096; ++i) EXPECT(host[i] == 6);
  // After a blocking copy of other memory, the earlier kernels' writes are visible.
  mark_odd<<<16, 128>>>(host, 4096, 7);
  uint8_t pageable[16];
  CHECK_RUNTIME(cudaMemcpy(pageable, device, sizeof pageable, cudaMemcpyDeviceToHost));
  for (unsigned i = 0; i < 4096; ++i) EXPECT(host[i] == (i % 2 ? 7 : 6));
  CHECK_RUNTIME(cudaFree(device));
  CHECK_RUNTIME(cudaFreeHost(host));
}

// Both sides write to the same words between two synchronisations, to different bytes of them.
void neighbouring_bytes() {
  uint8_t* bytes;
  CHECK_RUNTIME(cudaHostAlloc(&bytes, 1000, cudaHostAllocMapped));
  std::memset(bytes, 0, 1000);
  for (uint8_t round = 1; round < 10; ++round) {
    mark_odd<<<4, 128>>>(bytes, 1000, round);
    for (unsigned i = 0; i < 1000; i += 2) bytes[i] = uint8_t(100 + round);
    mark_odd<<<1, 1>>>(bytes, 2, uint8_t(50 + round));
    CHECK_RUNTIME(cudaDeviceSynchronize());
    for (unsigned i = 0; i < 1000; ++i) EXPECT(bytes[i] == (i % 2 == 0 ? 100 + round : i == 1 ? 50 + round : round));
  }
  CHECK_RUNTIME(cudaFreeHost(bytes));
}

void in_a_callback() {
  uint32_t* word;
  CHECK_RUNTIME(cudaHostAlloc(&word, sizeof *word, cudaHostAllocMapped));
  *word = 1;
  struct Seen {
    uint32_t* word;
    uint32_t value = 0;
  } seen{word};
  add<<<1, 32>>>(word, word, 9, 1);
  CHECK_RUNTIME(cudaLaunchHostFunc(
      nullptr, [](void* user) { static_cast<Seen*>(user)->value = *static_cast<Seen*>(user)->word; }, &seen));
  CHECK_RUNTIME(cudaDeviceSynchronize());
  EXPECT(seen.value == 10);
  CHECK_RUNTIME(cudaFreeHost(word));
}

void in_a_graph() {
  uint32_t* word;
  CHECK_RUNTIME(cudaHostAlloc(&word, sizeof *word, cudaHostAllocMapped));
  *word = 0;
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t instance;
  CHECK_RUNTIME(cudaStreamCreate(&stream));
  CHECK_RUNTIME(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  add<<<1, 32, 0, stream>>>(word, word, 2, 1);
  CHECK_RUNTIME(cudaStreamEndCapture(stream, &graph));
  CHECK_RUNTIME(cudaGraphInstantiate(&instance, graph, 0));
  for (uint32_t round = 0; round < 4; ++round) {
    *word = round * 100;
    CHECK_RUNTIME(cudaGraphLaunch(instance, stream));
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
    EXPECT(*word == round * 100 + 2);
  }
  CHECK_RUNTIME(cudaGraphExecDestroy(instance));
  CHECK_RUNTIME(cudaGraphDestroy(graph));
  CHECK_RUNTIME(cudaStreamDestroy(stream));
  CHECK_RUNTIME(cudaFreeHost(word));
}

void registered_memory() {
  void* mapped = mmap(nullptr, 1u << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT(mapped != MAP_FAILED);
  auto* memory = static_cast<uint32_t*>(mapped);
  for (unsigned i = 0; i < kCount; ++i) memory[i] = i;  // before it is registered
  CHECK_RUNTIME(cudaHostRegister(memory, kBytes, cudaHostRegisterMapped));
  uint32_t* device;
  cudaError_t found = cudaHostGetDevicePointer(&device, memory, 0);
  if (found == cudaErrorNotSupported) {
    // The other machine uses these addresses: the program prints that, and the memory works for copies.
    std::printf("registered memory cannot be mapped here\n");
    static_cast<void>(cudaGetLastError());
  } else {
    CHECK_RUNTIME(found);
    EXPECT(device == memory);
    add<<<kBlocks, 128>>>(device, device, 1, kCount);
    CHECK_RUNTIME(cudaDeviceSynchronize());
    for (unsigned i = 0; i < kCount; ++i) EXPECT(memory[i] == i + 1);
    rounds(memory, memory, device, device);
  }
  CHECK_RUNTIME(cudaHostUnregister(memory));
  munmap(mapped, 1u << 16);
}

void attributes() {
  uint32_t* memory;
  CHECK_RUNTIME(cudaHostAlloc(&memory, 64, cudaHostAllocMapped));
  cudaPointerAttributes attributes;
  CHECK_RUNTIME(cudaPointerGetAttributes(&attributes, memory));
  EXPECT(attributes.type == cudaMemoryTypeHost);
  EXPECT(attributes.devicePointer == memory && attributes.hostPointer == memory);
  CHECK_RUNTIME(cudaFreeHost(memory));
}

// Allocated and freed over and over, with other memory in between.
void many_times() {
  for (unsigned round = 0; round < 50; ++round) {
    std::vector<uint32_t*> words(8);
    for (auto& word : words) CHECK_RUNTIME(cudaHostAlloc(&word, sizeof *word, cudaHostAllocDefault));
    for (unsigned i = 0; i < words.size(); ++i) {
      *words[i] = i;
      add<<<1, 32>>>(words[i], words[(i + 1) % words.size()], round, 1);
      CHECK_RUNTIME(cudaDeviceSynchronize());
      EXPECT(*words[(i + 1) % words.size()] == i + round);
    }
    for (auto* word : words) CHECK_RUNTIME(cudaFreeHost(word));
  }
}

}  // namespace

int main() {
  mapped_memory();
  small_default_memory();
  large_memory();
  fills_and_copies();
  neighbouring_bytes();
  in_a_callback();
  in_a_graph();
  registered_memory();
  attributes();
  many_times();
  std::printf("PASSED\n");
  return 0;
}
