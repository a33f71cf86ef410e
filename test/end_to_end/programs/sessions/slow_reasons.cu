// Programs that are slow for one reason each: `slow_reasons REASON TIMES`.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "../../../../examples/check.hpp"

namespace {

constexpr size_t kSmallBytes = 256 << 10;
constexpr size_t kLargeBytes = 17 << 20;  // more than a session buffers of one copy

__global__ void add_one(unsigned* value) { *value += 1; }

// So long that the program's other work is short beside it.
__global__ void long_work(unsigned* value, unsigned turns) {
  unsigned state = *value;
  for (unsigned i = 0; i < turns; ++i) state = state * 1664525u + 1013904223u;
  *value = state;
}

struct Memory {
  unsigned* device = nullptr;
  char* large = nullptr;
  std::vector<char> pageable = std::vector<char>(kLargeBytes, 1);
  unsigned value = 0;

  Memory() {
    CHECK_RUNTIME(cudaMalloc(&device, sizeof *device));
    CHECK_RUNTIME(cudaMalloc(&large, kLargeBytes));
    CHECK_RUNTIME(cudaMemset(device, 0, sizeof *device));
  }
};

void pageable(Memory& memory) {
  CHECK_RUNTIME(cudaMemcpy(memory.large, memory.pageable.data(), kLargeBytes, cudaMemcpyHostToDevice));
}
// So small that a session keeps them without an answer, as long as it has room. Each copy is announced.
void sending(Memory& memory) {
  std::printf("copy\n");
  std::fflush(stdout);
  CHECK_RUNTIME(cudaMemcpyAsync(memory.large, memory.pageable.data(), kSmallBytes, cudaMemcpyHostToDevice));
}
void reading(Memory& memory) {
  CHECK_RUNTIME(cudaMemcpy(&memory.value, memory.device, sizeof memory.value, cudaMemcpyDeviceToHost));
}
void allocating(Memory&) {
  void* scratch;
  CHECK_RUNTIME(cudaMalloc(&scratch, 1 << 20));
  CHECK_RUNTIME(cudaFree(scratch));
}
void launching(Memory& memory) { add_one<<<1, 1>>>(memory.device); }
void computing(Memory& memory) {
  long_work<<<1, 1>>>(memory.device, 1'000'000);
  CHECK_RUNTIME(cudaDeviceSynchronize());
}

struct {
  const char* name;
  void (*turn)(Memory&);
} const kReasons[] = {
    {"sending", sending},       {"pageable", pageable},   {"reading", reading},
    {"allocating", allocating}, {"launching", launching}, {"computing", computing},
};

}  // namespace

int main(int argc, char** argv) {
  const std::string reason = argc > 1 ? argv[1] : "";
  const int times = argc > 2 ? std::atoi(argv[2]) : 100;
  Memory memory;
  for (const auto& row : kReasons) {
    if (reason != row.name) continue;
    for (int i = 0; i < times; ++i) row.turn(memory);
    CHECK_RUNTIME(cudaDeviceSynchronize());
    std::printf("PASSED\n");
    return 0;
  }
  std::fprintf(stderr, "usage: slow_reasons sending|pageable|reading|allocating|launching|computing TIMES\n");
  return 2;
}
