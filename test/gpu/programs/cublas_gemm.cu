// cuBLAS: single, double, TF32 and bfloat16 products, batched, a solve and a norm, against the CPU.
#include <cublas_v2.h>
#include <cuda_bf16.h>

#include "../../support/cuda_check.hpp"

namespace {

constexpr int kRows = 160, kColumns = 96, kInner = 224, kBatch = 5;

void products(cublasHandle_t handle) {
  check::Random random(1);
  const auto a = random.values<float>(kRows * kInner), b = random.values<float>(kInner * kColumns);
  const auto expected = check::product(a, b, kRows, kColumns, kInner);
  check::Device<float> device_a(a), device_b(b), device_c(size_t(kRows) * kColumns);
  const float one = 1, zero = 0;
  const auto multiply = [&](cublasMath_t mode, const char* name, double tolerance) {
    CHECK_LIBRARY(cublasSetMathMode(handle, mode));
    CHECK_LIBRARY(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, kRows, kColumns, kInner, &one, device_a.get(), kRows,
                              device_b.get(), kInner, &zero, device_c.get(), kRows));
    check::close(name, device_c.host(), expected, tolerance);
    check::checksum(name, device_c.host());
  };
  multiply(CUBLAS_PEDANTIC_MATH, "fp32", 1e-5);
  multiply(CUBLAS_TF32_TENSOR_OP_MATH, "tf32", 1e-2);
  CHECK_LIBRARY(cublasSetMathMode(handle, CUBLAS_DEFAULT_MATH));

  std::vector<__nv_bfloat16> half_a, half_b;
  for (float value : a) half_a.push_back(__float2bfloat16(value));
  for (float value : b) half_b.push_back(__float2bfloat16(value));
  std::vector<float> rounded_a, rounded_b;
  for (auto value : half_a) rounded_a.push_back(__bfloat162float(value));
  for (auto value : half_b) rounded_b.push_back(__bfloat162float(value));
  check::Device<__nv_bfloat16> device_half_a(half_a), device_half_b(half_b);
  CHECK_LIBRARY(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, kRows, kColumns, kInner, &one, device_half_a.get(),
                             CUDA_R_16BF, kRows, device_half_b.get(), CUDA_R_16BF, kInner, &zero, device_c.get(),
                             CUDA_R_32F, kRows, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  check::close("bf16", device_c.host(), check::product(rounded_a, rounded_b, kRows, kColumns, kInner), 1e-5);
  check::checksum("bf16", device_c.host());
}

void doubles_in_a_batch(cublasHandle_t handle) {
  check::Random random(2);
  const auto a = random.values<double>(size_t(kBatch) * 48 * 32), b = random.values<double>(size_t(kBatch) * 32 * 40);
  std::vector<double> expected;
  for (int i = 0; i < kBatch; ++i) {
    const auto one =
        check::product(std::vector<double>(a.begin() + i * 48 * 32, a.begin() + (i + 1) * 48 * 32),
                       std::vector<double>(b.begin() + i * 32 * 40, b.begin() + (i + 1) * 32 * 40), 48, 40, 32);
    expected.insert(expected.end(), one.begin(), one.end());
  }
  check::Device<double> device_a(a), device_b(b), device_c(expected.size());
  const double one = 1, zero = 0;
  CHECK_LIBRARY(cublasDgemmStridedBatched(handle, CUBLAS_OP_N, CUBLAS_OP_N, 48, 40, 32, &one, device_a.get(), 48,
                                          48 * 32, device_b.get(), 32, 32 * 40, &zero, device_c.get(), 48, 48 * 40,
                                          kBatch));
  check::close("fp64 batched", device_c.host(), expected, 1e-12);
  check::checksum("fp64 batched", device_c.host());
}

// A result in host memory makes the call wait; one in device memory does not.
void scalar_results(cublasHandle_t handle) {
  check::Random random(3);
  const auto x = random.values<float>(100000);
  double squares = 0;
  for (float value : x) squares += double(value) * value;
  check::Device<float> device_x(x), device_result(1);
  float norm = 0;
  CHECK_LIBRARY(cublasSnrm2(handle, int(x.size()), device_x.get(), 1, &norm));
  check::close("norm to the host", std::vector<float>{norm}, std::vector<double>{std::sqrt(squares)}, 1e-5);
  CHECK_LIBRARY(cublasSetPointerMode(handle, CUBLAS_POINTER_MODE_DEVICE));
  CHECK_LIBRARY(cublasSnrm2(handle, int(x.size()), device_x.get(), 1, device_result.get()));
  CHECK_LIBRARY(cublasSetPointerMode(handle, CUBLAS_POINTER_MODE_HOST));
  check::close("norm to the device", device_result.host(), std::vector<double>{std::sqrt(squares)}, 1e-5);
}

void triangular_solve(cublasHandle_t handle) {
  constexpr int kSize = 64, kSides = 8;
  check::Random random(4);
  auto a = random.values<double>(kSize * kSize);
  const auto x = random.values<double>(kSize * kSides);
  for (int column = 0; column < kSize; ++column) {
    for (int row = 0; row < column; ++row) a[column * kSize + row] = 0;
    a[column * kSize + column] = 10 + column;
  }
  check::Device<double> device_a(a), device_b(check::product(a, x, kSize, kSides, kSize));
  const double one = 1;
  CHECK_LIBRARY(cublasDtrsm(handle, CUBLAS_SIDE_LEFT, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N, CUBLAS_DIAG_NON_UNIT, kSize,
                            kSides, &one, device_a.get(), kSize, device_b.get(), kSize));
  check::close("triangular solve", device_b.host(), x, 1e-12);
}

}  // namespace

int main() {
  cublasHandle_t handle;
  CHECK_LIBRARY(cublasCreate(&handle));
  products(handle);
  doubles_in_a_batch(handle);
  scalar_results(handle);
  triangular_solve(handle);
  CHECK_LIBRARY(cublasDestroy(handle));
  std::printf("PASSED\n");
}
