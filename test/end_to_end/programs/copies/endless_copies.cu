// Copies 64 MiB to and fro until a call fails, or with "kept" 1 MiB to the device only, which a session buffers without
// a wait; prints "copying" after the first copy and the error's name at the end. Exit code 3.
#include <cuda_runtime.h>

#include <cstdio>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  const bool kept = argc > 1 && std::string(argv[1]) == "kept";
  std::vector<char> host(size_t(kept ? 1 : 64) << 20, 1);
  void* device = nullptr;
  cudaError_t error = cudaMalloc(&device, host.size());
  bool said = false;
  while (error == cudaSuccess) {
    error = cudaMemcpy(device, host.data(), host.size(), cudaMemcpyHostToDevice);
    if (error == cudaSuccess && !said) {
      std::printf("copying\n");
      std::fflush(stdout);
      said = true;
    }
    if (error == cudaSuccess && !kept) error = cudaMemcpy(host.data(), device, host.size(), cudaMemcpyDeviceToHost);
  }
  std::printf("%s\n", cudaGetErrorName(error));
  // Calls after the end of the session fail at once and do not hang.
  void* more = nullptr;
  if (cudaMalloc(&more, 16) == cudaSuccess) std::printf("an allocation succeeded after the end\n");
  return 3;
}
