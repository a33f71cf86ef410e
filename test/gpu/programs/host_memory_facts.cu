// Prints a driver's answers about pinned memory in undocumented cases: a line for each fact, the same natively and
// through gpuwire.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>

#include <sys/mman.h>
#include <unistd.h>

#include "../../support/cuda_check.hpp"

namespace {

constexpr size_t kPage = 4096;

__global__ void await_word(const volatile uint32_t* word) {
  while (*word == 0) {}
}
__global__ void store(uint32_t* word, uint32_t value) { *word = value; }

void tell(const char* what, cudaError_t error) {
  std::printf("%s: %s\n", what, cudaGetErrorName(error));
  static_cast<void>(cudaGetLastError());
}

char* pages(size_t count) {
  void* memory = mmap(nullptr, count * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT(memory != MAP_FAILED);
  return static_cast<char*>(memory);
}

void flags_of_allocations() {
  for (const unsigned given : {0u, 1u, 2u, 3u, 4u, 7u}) {
    void* memory = nullptr;
    unsigned flags = ~0u;
    CHECK_RUNTIME(cudaHostAlloc(&memory, 100, given));
    CHECK_RUNTIME(cudaHostGetFlags(&flags, memory));
    std::printf("flags of an allocation with %u: %u\n", given, flags);
    CHECK_RUNTIME(cudaFreeHost(memory));
  }
}

void registered_ranges() {
  char* memory = pages(8);
  tell("registering what begins and ends within pages", cudaHostRegister(memory + 100, 5000, cudaHostRegisterDefault));
  unsigned flags = 0;
  tell("flags of registered memory", cudaHostGetFlags(&flags, memory + 100));
  tell("registering a neighbour in the same page", cudaHostRegister(memory + 6000, 100, cudaHostRegisterDefault));
  tell("registering what is registered", cudaHostRegister(memory + 200, 10, cudaHostRegisterDefault));
  tell("registering more than what is registered", cudaHostRegister(memory, 8 * kPage, cudaHostRegisterDefault));
  tell("giving up what does not begin there", cudaHostUnregister(memory + 200));
  tell("giving up the neighbour", cudaHostUnregister(memory + 6000));
  tell("giving up", cudaHostUnregister(memory + 100));
  tell("giving up again", cudaHostUnregister(memory + 100));
  tell("registering again before the context ends", cudaHostRegister(memory, kPage, cudaHostRegisterDefault));
  CHECK_RUNTIME(cudaDeviceReset());
  tell("registering after the context has ended", cudaHostRegister(memory, kPage, cudaHostRegisterDefault));
  tell("giving it up", cudaHostUnregister(memory));
  munmap(memory, 8 * kPage);
}

// A kernel is blocked; pinning memory, and passing new memory to another kernel, must not wait for it.
void beside_a_kernel_that_stands() {
  uint32_t *gate, *fresh;
  cudaStream_t standing, other;
  char* memory = pages(1);
  CHECK_RUNTIME(cudaMallocHost(&gate, sizeof *gate));
  CHECK_RUNTIME(cudaMallocHost(&fresh, sizeof *fresh));
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&standing, cudaStreamNonBlocking));
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  store<<<1, 1, 0, other>>>(gate, 0);
  CHECK_RUNTIME(cudaStreamSynchronize(other));
  alarm(30);  // if one of these waits, this signal ends the process
  await_word<<<1, 1, 0, standing>>>(gate);
  tell("registering beside a kernel that stands", cudaHostRegister(memory, kPage, cudaHostRegisterDefault));
  store<<<1, 1, 0, other>>>(fresh, 5);
  store<<<1, 1, 0, other>>>(reinterpret_cast<uint32_t*>(memory), 6);
  tell("work beside a kernel that stands", cudaStreamSynchronize(other));
  std::printf("it wrote %u and %u\n", *fresh, *reinterpret_cast<uint32_t*>(memory));
  *static_cast<volatile uint32_t*>(gate) = 1;
  tell("the end of the kernel", cudaStreamSynchronize(standing));
  alarm(0);
}

}  // namespace

int main() {
  flags_of_allocations();
  registered_ranges();
  beside_a_kernel_that_stands();
  std::printf("PASSED\n");
}
