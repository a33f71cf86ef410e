// After cudaDeviceReset all objects are gone and the program begins again: kernels, symbols with their initial values,
// streams, memory.
#include "../../../support/cuda_check.hpp"

namespace {

__device__ int counter = 5;

__global__ void count(int* out) { *out = atomicAdd(&counter, 1); }

void once() {
  check::Device<int> out(1);
  cudaStream_t stream;
  CHECK_RUNTIME(cudaStreamCreate(&stream));
  for (int expected : {5, 6, 7}) {
    count<<<1, 1, 0, stream>>>(out.get());
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
    EXPECT(out.host()[0] == expected);
  }
}

}  // namespace

int main() {
  for (int round = 0; round < 3; ++round) {
    once();
    int* lost;
    CHECK_RUNTIME(cudaMalloc(&lost, 1 << 20));
    CHECK_RUNTIME(cudaDeviceReset());
    EXPECT(cudaFree(lost) == cudaErrorInvalidValue);
    static_cast<void>(cudaGetLastError());
  }
  std::printf("PASSED\n");
  return 0;
}
