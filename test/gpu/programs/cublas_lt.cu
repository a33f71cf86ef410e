// cuBLASLt: matmul with the best algorithm of the heuristic in fp32, TF32, bfloat16 with bias and ReLU, and fp8 with
// scales, against the CPU.
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "../../support/cuda_check.hpp"

namespace {

constexpr int kRows = 256, kColumns = 128, kInner = 192;
constexpr size_t kWorkspaceBytes = 32 << 20;

struct Types {
  cudaDataType_t in, out;
  cublasComputeType_t compute;
};

class Matmul {
 public:
  // D = A^T * B with column-major A (kInner x kRows): the one layout that fp8 allows, and good for the others.
  explicit Matmul(Types types) : workspace_(kWorkspaceBytes) {
    CHECK_LIBRARY(cublasLtCreate(&handle_));
    CHECK_LIBRARY(cublasLtMatmulDescCreate(&operation_, types.compute, CUDA_R_32F));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    set(CUBLASLT_MATMUL_DESC_TRANSA, transposed);
    CHECK_LIBRARY(cublasLtMatrixLayoutCreate(&a_, types.in, kInner, kRows, kInner));
    CHECK_LIBRARY(cublasLtMatrixLayoutCreate(&b_, types.in, kInner, kColumns, kInner));
    CHECK_LIBRARY(cublasLtMatrixLayoutCreate(&d_, types.out, kRows, kColumns, kRows));
  }
  ~Matmul() {
    cublasLtMatrixLayoutDestroy(d_);
    cublasLtMatrixLayoutDestroy(b_);
    cublasLtMatrixLayoutDestroy(a_);
    cublasLtMatmulDescDestroy(operation_);
    cublasLtDestroy(handle_);
  }
  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    CHECK_LIBRARY(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof value));
  }
  void run(const void* a, const void* b, void* d) {
    cublasLtMatmulPreference_t preference;
    CHECK_LIBRARY(cublasLtMatmulPreferenceCreate(&preference));
    const size_t workspace_bytes = kWorkspaceBytes;
    CHECK_LIBRARY(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                       &workspace_bytes, sizeof workspace_bytes));
    cublasLtMatmulHeuristicResult_t best;
    int found = 0;
    CHECK_LIBRARY(cublasLtMatmulAlgoGetHeuristic(handle_, operation_, a_, b_, d_, d_, preference, 1, &best, &found));
    EXPECT(found == 1);
    CHECK_LIBRARY(cublasLtMatmulPreferenceDestroy(preference));
    const float one = 1, zero = 0;
    CHECK_LIBRARY(cublasLtMatmul(handle_, operation_, &one, a, a_, b, b_, &zero, d, d_, d, d_, &best.algo,
                                 workspace_.get(), kWorkspaceBytes, nullptr));
  }

 private:
  cublasLtHandle_t handle_;
  cublasLtMatmulDesc_t operation_;
  cublasLtMatrixLayout_t a_, b_, d_;
  check::Device<char> workspace_;
};

// A^T * B in double, from the values of the narrow types.
template <typename T>
std::vector<double> expected_product(const std::vector<T>& a, const std::vector<T>& b) {
  std::vector<double> d(size_t(kRows) * kColumns);
  for (int column = 0; column < kColumns; ++column) {
    for (int row = 0; row < kRows; ++row) {
      double sum = 0;
      for (int k = 0; k < kInner; ++k)
        sum += double(float(a[row * kInner + k])) * double(float(b[column * kInner + k]));
      d[size_t(column) * kRows + row] = sum;
    }
  }
  return d;
}

template <typename T>
std::vector<float> widened(const std::vector<T>& values) {
  return std::vector<float>(values.begin(), values.end());
}

void single_precision() {
  check::Random random(1);
  const auto a = random.values<float>(kRows * kInner), b = random.values<float>(kInner * kColumns);
  check::Device<float> device_a(a), device_b(b), device_d(size_t(kRows) * kColumns);
  const auto expected = expected_product(a, b);
  Matmul plain({CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F});
  plain.run(device_a.get(), device_b.get(), device_d.get());
  check::close("fp32", device_d.host(), expected, 1e-5);
  check::checksum("fp32", device_d.host());
  Matmul fast({CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32});
  fast.run(device_a.get(), device_b.get(), device_d.get());
  check::close("tf32", device_d.host(), expected, 1e-2);
  check::checksum("tf32", device_d.host());
}

void half_precision_with_bias() {
  check::Random random(2);
  const auto a = random.values<__nv_bfloat16>(kRows * kInner), b = random.values<__nv_bfloat16>(kInner * kColumns);
  const auto bias = random.values<__nv_bfloat16>(kRows);
  check::Device<__nv_bfloat16> device_a(a), device_b(b), device_bias(bias), device_d(size_t(kRows) * kColumns);
  Matmul matmul({CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F});
  matmul.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_RELU_BIAS);
  matmul.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(device_bias.get()));
  matmul.run(device_a.get(), device_b.get(), device_d.get());
  auto expected = expected_product(a, b);
  for (size_t i = 0; i < expected.size(); ++i)
    expected[i] = std::fmax(0.0, expected[i] + double(float(bias[i % kRows])));
  check::close("bf16 with bias and ReLU", widened(device_d.host()), expected, 1e-2);
  check::checksum("bf16", device_d.host());
}

void eight_bits_with_scales() {
  check::Random random(3);
  const auto a = random.values<__nv_fp8_e4m3>(kRows * kInner), b = random.values<__nv_fp8_e4m3>(kInner * kColumns);
  check::Device<__nv_fp8_e4m3> device_a(a), device_b(b);
  check::Device<float> scale_a(std::vector<float>{0.5f}), scale_b(std::vector<float>{4.0f});
  check::Device<__nv_bfloat16> device_d(size_t(kRows) * kColumns);
  Matmul matmul({CUDA_R_8F_E4M3, CUDA_R_16BF, CUBLAS_COMPUTE_32F});
  matmul.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(scale_a.get()));
  matmul.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(scale_b.get()));
  matmul.run(device_a.get(), device_b.get(), device_d.get());
  auto expected = expected_product(a, b);
  for (double& value : expected) value *= 2;
  check::close("fp8 e4m3 with scales", widened(device_d.host()), expected, 1e-2);
  check::checksum("fp8", device_d.host());
}

}  // namespace

int main() {
  single_precision();
  half_precision_with_bias();
  cudaDeviceProp properties;
  CHECK_RUNTIME(cudaGetDeviceProperties(&properties, 0));
  if (properties.major * 10 + properties.minor >= 89) {
    eight_bits_with_scales();
  } else {
    std::printf("fp8: this device has none\n");
  }
  std::printf("PASSED\n");
}
