// usage: cublas_steps STEPS: products of the same matrices one after another, read once at the end. A steady step waits
// for nothing.
#include <cublas_v2.h>
#include <cuda_bf16.h>

#include "../../support/cuda_check.hpp"

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 50;
  constexpr int kSize = 512;
  check::Random random(1);
  check::Device<float> a(random.values<float>(kSize * kSize)), b(random.values<float>(kSize * kSize)),
      c(size_t(kSize) * kSize);
  check::Device<__nv_bfloat16> half_a(random.values<__nv_bfloat16>(kSize * kSize)),
      half_b(random.values<__nv_bfloat16>(kSize * kSize));
  check::Device<float> half_c(size_t(kSize) * kSize);
  cublasHandle_t handle;
  CHECK_LIBRARY(cublasCreate(&handle));
  const float one = 1, zero = 0;
  const auto step = [&] {
    CHECK_LIBRARY(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_T, kSize, kSize, kSize, &one, a.get(), kSize, b.get(),
                              kSize, &zero, c.get(), kSize));
    CHECK_LIBRARY(cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, kSize, kSize, kSize, &one, half_a.get(), CUDA_R_16BF,
                               kSize, half_b.get(), CUDA_R_16BF, kSize, &zero, half_c.get(), CUDA_R_32F, kSize,
                               CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  };
  step();
  const auto first = c.host(), half_first = half_c.host();
  for (int i = 0; i < steps; ++i) step();
  EXPECT(c.host() == first);
  EXPECT(half_c.host() == half_first);
  CHECK_LIBRARY(cublasDestroy(handle));
  std::printf("steps %d\nPASSED\n", steps);
}
