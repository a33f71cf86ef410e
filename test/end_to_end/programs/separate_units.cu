// A program whose device code is spread over two translation units (-rdc=true) and linked for an architecture that the
// device may not have: then the driver links again from the units.
#include <cstdio>
#include <vector>

#include "../../support/cuda_check.hpp"

extern __device__ float scale;
__device__ float squared(float value);

__global__ void scaled_squares(float* out, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = scale * squared(float(i));
}

int main() {
  constexpr int kCount = 1000;
  float* out = nullptr;
  CHECK_RUNTIME(cudaMalloc(&out, kCount * sizeof(float)));
  scaled_squares<<<4, 256>>>(out, kCount);
  CHECK_RUNTIME(cudaGetLastError());
  std::vector<float> values(kCount);
  CHECK_RUNTIME(cudaMemcpy(values.data(), out, kCount * sizeof(float), cudaMemcpyDeviceToHost));
  for (int i = 0; i < kCount; ++i) {
    if (values[i] != 0.5f * float(i) * float(i)) {
      std::printf("element %d is %g\n", i, values[i]);
      return 1;
    }
  }
  std::printf("PASSED\n");
}
