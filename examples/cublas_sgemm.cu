// cublasSgemm against a CPU result. Needs a real GPU: cuBLAS brings machine code only.
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <vector>

#include "check.hpp"

int main() {
  constexpr int kN = 300;
  std::vector<float> a(kN * kN), b(kN * kN), c(kN * kN, 1.0f);
  for (int i = 0; i < kN * kN; ++i) {
    a[i] = float(i * 7 % 13 - 6);
    b[i] = float(i * 5 % 11 - 5);
  }
  float *device_a, *device_b, *device_c;
  CHECK_RUNTIME(cudaMalloc(&device_a, a.size() * sizeof(float)));
  CHECK_RUNTIME(cudaMalloc(&device_b, b.size() * sizeof(float)));
  CHECK_RUNTIME(cudaMalloc(&device_c, c.size() * sizeof(float)));
  CHECK_RUNTIME(cudaMemcpy(device_a, a.data(), a.size() * sizeof(float), cudaMemcpyHostToDevice));
  CHECK_RUNTIME(cudaMemcpy(device_b, b.data(), b.size() * sizeof(float), cudaMemcpyHostToDevice));
  CHECK_RUNTIME(cudaMemcpy(device_c, c.data(), c.size() * sizeof(float), cudaMemcpyHostToDevice));
  cublasHandle_t handle;
  cublasStatus_t status = cublasCreate(&handle);
  if (status != CUBLAS_STATUS_SUCCESS) {
    std::printf("cublasCreate: %d\nFAILED\n", int(status));
    return 1;
  }
  const float alpha = 2.0f, beta = 0.5f;
  status = cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, kN, kN, kN, &alpha, device_a, kN, device_b, kN, &beta,
                       device_c, kN);
  if (status != CUBLAS_STATUS_SUCCESS) {
    std::printf("cublasSgemm: %d\nFAILED\n", int(status));
    return 1;
  }
  std::vector<float> result(c.size());
  CHECK_RUNTIME(cudaMemcpy(result.data(), device_c, result.size() * sizeof(float), cudaMemcpyDeviceToHost));
  cublasDestroy(handle);

  double worst = 0;
  for (int column = 0; column < kN; ++column) {
    for (int row = 0; row < kN; ++row) {
      double sum = 0;
      for (int k = 0; k < kN; ++k) sum += double(a[k * kN + row]) * b[column * kN + k];
      double expected = 2.0 * sum + 0.5;
      worst = std::fmax(worst, std::fabs(result[column * kN + row] - expected) / std::fmax(1.0, std::fabs(expected)));
    }
  }
  std::printf("largest relative error %s\n%s\n", worst < 1e-5 ? "below 1e-5" : "too large",
              worst < 1e-5 ? "PASSED" : "FAILED");
  return worst < 1e-5 ? 0 : 1;
}
