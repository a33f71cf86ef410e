// cuDNN: a convolution forward, backward for the data and for the filter, pooling and softmax, in single precision,
// against the CPU.
#include <cudnn.h>

#include "../../support/cuda_check.hpp"

namespace {

constexpr int kBatch = 4, kIn = 8, kOut = 16, kSide = 20, kKernel = 3, kPad = 1;
using Values = std::vector<float>;
using Doubles = std::vector<double>;

size_t at(int n, int c, int y, int x, int channels) { return ((size_t(n) * channels + c) * kSide + y) * kSide + x; }
size_t weight_at(int out, int in, int y, int x) { return ((size_t(out) * kIn + in) * kKernel + y) * kKernel + x; }

// Calls visit(index of x, index of w, index of y) for every product of the convolution.
template <typename Visit>
void every_product(Visit visit) {
  for (int n = 0; n < kBatch; ++n)
    for (int out = 0; out < kOut; ++out)
      for (int in = 0; in < kIn; ++in)
        for (int y = 0; y < kSide; ++y)
          for (int x = 0; x < kSide; ++x)
            for (int dy = 0; dy < kKernel; ++dy)
              for (int dx = 0; dx < kKernel; ++dx) {
                const int from_y = y + dy - kPad, from_x = x + dx - kPad;
                if (from_y < 0 || from_y >= kSide || from_x < 0 || from_x >= kSide) continue;
                visit(at(n, in, from_y, from_x, kIn), weight_at(out, in, dy, dx), at(n, out, y, x, kOut));
              }
}

struct Descriptors {
  cudnnTensorDescriptor_t x, y;
  cudnnFilterDescriptor_t w;
  cudnnConvolutionDescriptor_t convolution;
  Descriptors() {
    CHECK_LIBRARY(cudnnCreateTensorDescriptor(&x));
    CHECK_LIBRARY(cudnnCreateTensorDescriptor(&y));
    CHECK_LIBRARY(cudnnCreateFilterDescriptor(&w));
    CHECK_LIBRARY(cudnnCreateConvolutionDescriptor(&convolution));
    CHECK_LIBRARY(cudnnSetTensor4dDescriptor(x, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, kBatch, kIn, kSide, kSide));
    CHECK_LIBRARY(cudnnSetTensor4dDescriptor(y, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, kBatch, kOut, kSide, kSide));
    CHECK_LIBRARY(cudnnSetFilter4dDescriptor(w, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, kOut, kIn, kKernel, kKernel));
    CHECK_LIBRARY(cudnnSetConvolution2dDescriptor(convolution, kPad, kPad, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION,
                                                  CUDNN_DATA_FLOAT));
    CHECK_LIBRARY(cudnnSetConvolutionMathType(convolution, CUDNN_FMA_MATH));
  }
};

void convolutions(cudnnHandle_t handle) {
  check::Random random(1);
  const auto x = random.values<float>(size_t(kBatch) * kIn * kSide * kSide),
             w = random.values<float>(size_t(kOut) * kIn * kKernel * kKernel);
  const auto dy = random.values<float>(size_t(kBatch) * kOut * kSide * kSide);
  Doubles expected_y(dy.size()), expected_dx(x.size()), expected_dw(w.size());
  every_product([&](size_t i, size_t k, size_t o) {
    expected_y[o] += double(x[i]) * w[k];
    expected_dx[i] += double(dy[o]) * w[k];
    expected_dw[k] += double(dy[o]) * x[i];
  });
  const Descriptors descriptors;
  check::Device<float> device_x(x), device_w(w), device_dy(dy), y(dy.size()), dx(x.size()), dw(w.size());
  const float one = 1, zero = 0;

  int found = 0;
  cudnnConvolutionFwdAlgoPerf_t best;
  CHECK_LIBRARY(cudnnGetConvolutionForwardAlgorithm_v7(handle, descriptors.x, descriptors.w, descriptors.convolution,
                                                       descriptors.y, 1, &found, &best));
  EXPECT(found == 1);
  check::Device<char> workspace(best.memory + (64 << 20));
  CHECK_LIBRARY(cudnnConvolutionForward(handle, &one, descriptors.x, device_x.get(), descriptors.w, device_w.get(),
                                        descriptors.convolution, best.algo, workspace.get(), best.memory, &zero,
                                        descriptors.y, y.get()));
  check::close("forward", y.host(), expected_y, 1e-4);
  check::checksum("forward", y.host());
  CHECK_LIBRARY(cudnnConvolutionBackwardData(
      handle, &one, descriptors.w, device_w.get(), descriptors.y, device_dy.get(), descriptors.convolution,
      CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, workspace.get(), 64 << 20, &zero, descriptors.x, dx.get()));
  check::close("backward data", dx.host(), expected_dx, 1e-4);
  check::checksum("backward data", dx.host());
  CHECK_LIBRARY(cudnnConvolutionBackwardFilter(
      handle, &one, descriptors.x, device_x.get(), descriptors.y, device_dy.get(), descriptors.convolution,
      CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, workspace.get(), 64 << 20, &zero, descriptors.w, dw.get()));
  check::close("backward filter", dw.host(), expected_dw, 1e-4);
  check::checksum("backward filter", dw.host());
}

void pooling_and_softmax(cudnnHandle_t handle) {
  check::Random random(2);
  constexpr int kHalf = kSide / 2;
  const auto x = random.values<float>(size_t(kBatch) * kIn * kSide * kSide);
  Doubles pooled, soft(x.size());
  for (int plane = 0; plane < kBatch * kIn; ++plane)
    for (int row = 0; row < kHalf; ++row)
      for (int column = 0; column < kHalf; ++column) {
        const float* corner = &x[(size_t(plane) * kSide + 2 * row) * kSide + 2 * column];
        pooled.push_back(std::fmax(std::fmax(corner[0], corner[1]), std::fmax(corner[kSide], corner[kSide + 1])));
      }
  for (int n = 0; n < kBatch; ++n)
    for (int pixel = 0; pixel < kSide * kSide; ++pixel) {
      double sum = 0;
      for (int c = 0; c < kIn; ++c) sum += std::exp(double(x[(size_t(n) * kIn + c) * kSide * kSide + pixel]));
      for (int c = 0; c < kIn; ++c) {
        const size_t i = (size_t(n) * kIn + c) * kSide * kSide + pixel;
        soft[i] = std::exp(double(x[i])) / sum;
      }
    }
  const Descriptors descriptors;
  cudnnTensorDescriptor_t half;
  cudnnPoolingDescriptor_t pooling;
  CHECK_LIBRARY(cudnnCreateTensorDescriptor(&half));
  CHECK_LIBRARY(cudnnSetTensor4dDescriptor(half, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, kBatch, kIn, kHalf, kHalf));
  CHECK_LIBRARY(cudnnCreatePoolingDescriptor(&pooling));
  CHECK_LIBRARY(cudnnSetPooling2dDescriptor(pooling, CUDNN_POOLING_MAX, CUDNN_NOT_PROPAGATE_NAN, 2, 2, 0, 0, 2, 2));
  check::Device<float> device_x(x), device_pooled(pooled.size()), device_soft(x.size());
  const float one = 1, zero = 0;
  CHECK_LIBRARY(
      cudnnPoolingForward(handle, pooling, &one, descriptors.x, device_x.get(), &zero, half, device_pooled.get()));
  check::close("pooling", device_pooled.host(), pooled, 0);
  CHECK_LIBRARY(cudnnSoftmaxForward(handle, CUDNN_SOFTMAX_ACCURATE, CUDNN_SOFTMAX_MODE_CHANNEL, &one, descriptors.x,
                                    device_x.get(), &zero, descriptors.x, device_soft.get()));
  check::close("softmax", device_soft.host(), soft, 1e-5);
  check::checksum("softmax", device_soft.host());
}

}  // namespace

int main() {
  cudnnHandle_t handle;
  CHECK_LIBRARY(cudnnCreate(&handle));
  convolutions(handle);
  pooling_and_softmax(handle);
  CHECK_LIBRARY(cudnnDestroy(handle));
  std::printf("PASSED\n");
}
