// Executes a command for each line of its standard input, and answers with a line: "take MIB" allocates, "give" frees
// what was taken last, "free" tells how many bytes cudaMemGetInfo promises, "all" takes those, "map MIB" allocates
// memory of the host and has the device write there, "load MIB" loads a program of so much text, unlike any before.
// Prints "ready" first and PASSED at the end.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "../../../../examples/check.hpp"

namespace {

size_t promised() {
  size_t free_bytes = 0, total = 0;
  CHECK_RUNTIME(cudaMemGetInfo(&free_bytes, &total));
  return free_bytes;
}

std::vector<void*> taken;

void take(size_t bytes) {
  void* address = nullptr;
  cudaError_t error = cudaMalloc(&address, bytes);
  if (error == cudaSuccess) taken.push_back(address);
  else if (error == cudaErrorMemoryAllocation) (void)cudaGetLastError();
  std::printf("%s\n", error == cudaSuccess ? "taken" : cudaGetErrorName(error));
}

void map(size_t bytes) {
  void* address = nullptr;
  CHECK_RUNTIME(cudaHostAlloc(&address, bytes, cudaHostAllocMapped));
  cudaError_t error = cudaMemset(address, 1, 1);
  if (error == cudaErrorMemoryAllocation) (void)cudaGetLastError();
  std::printf("%s\n", error == cudaSuccess ? "taken" : cudaGetErrorName(error));
}

void load(size_t bytes) {
  static unsigned loaded = 0;
  std::string text = ".version 8.0\n.target sm_70\n.address_size 64\n.visible .entry program_" +
                     std::to_string(++loaded) + "() { ret; }\n";
  text.resize(bytes, '\n');
  CUmodule module = nullptr;
  CUresult error = cuModuleLoadData(&module, text.c_str());
  const char* name = "taken";
  if (error != CUDA_SUCCESS) cuGetErrorName(error, &name);
  std::printf("%s\n", name);
}

}  // namespace

int main() {
  CHECK_RUNTIME(cudaFree(nullptr));
  std::printf("ready\n");
  std::fflush(stdout);
  char line[64];
  while (std::fgets(line, sizeof line, stdin)) {
    unsigned mib = 0;
    if (std::sscanf(line, "take %u", &mib) == 1) {
      take(size_t(mib) << 20);
    } else if (std::sscanf(line, "map %u", &mib) == 1) {
      map(size_t(mib) << 20);
    } else if (std::sscanf(line, "load %u", &mib) == 1) {
      load(size_t(mib) << 20);
    } else if (std::strcmp(line, "all\n") == 0) {
      take(promised());
    } else if (std::strcmp(line, "give\n") == 0 && !taken.empty()) {
      CHECK_RUNTIME(cudaFree(taken.back()));
      taken.pop_back();
      std::printf("given\n");
    } else {
      std::printf("%zu\n", promised());
    }
    std::fflush(stdout);
  }
  std::printf("PASSED\n");
  return 0;
}
