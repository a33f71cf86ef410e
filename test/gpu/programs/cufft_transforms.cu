// cuFFT: a batch of 1D transforms, real 2D both ways, doubles of an awkward length, against sums on the CPU and the way
// back.
#include <complex>

#include <cufft.h>

#include "../../support/cuda_check.hpp"

namespace {

using Complex = std::complex<double>;
constexpr double kTurn = 6.283185307179586476925;

std::vector<Complex> transformed(const std::vector<Complex>& in, int sign) {
  const size_t count = in.size();
  std::vector<Complex> out(count);
  for (size_t k = 0; k < count; ++k)
    for (size_t i = 0; i < count; ++i)
      out[k] += in[i] * std::polar(1.0, sign * kTurn * double(i * k % count) / double(count));
  return out;
}

template <typename Pair>
std::vector<double> parts(const std::vector<Pair>& values) {
  std::vector<double> all;
  for (const Pair& value : values) {
    all.push_back(value.x);
    all.push_back(value.y);
  }
  return all;
}
std::vector<double> parts(const std::vector<Complex>& values) {
  std::vector<double> all;
  for (const Complex& value : values) {
    all.push_back(value.real());
    all.push_back(value.imag());
  }
  return all;
}

void batch() {
  constexpr int kCount = 512, kBatch = 8;
  check::Random random(1);
  std::vector<cufftComplex> in(kCount * kBatch);
  for (auto& value : in) value = {random.next(), random.next()};
  std::vector<Complex> expected;
  for (int i = 0; i < kBatch; ++i) {
    std::vector<Complex> one;
    for (int k = 0; k < kCount; ++k) one.emplace_back(in[i * kCount + k].x, in[i * kCount + k].y);
    for (const Complex& value : transformed(one, -1)) expected.push_back(value);
  }
  check::Device<cufftComplex> data(in);
  cufftHandle plan;
  CHECK_LIBRARY(cufftPlan1d(&plan, kCount, CUFFT_C2C, kBatch));
  CHECK_LIBRARY(cufftExecC2C(plan, data.get(), data.get(), CUFFT_FORWARD));
  check::close("1D batch", parts(data.host()), parts(expected), 1e-5);
  check::checksum("1D batch", data.host());
  CHECK_LIBRARY(cufftExecC2C(plan, data.get(), data.get(), CUFFT_INVERSE));
  auto back = parts(data.host());
  for (double& value : back) value /= kCount;
  check::close("1D batch and back", back, parts(in), 1e-5);
  CHECK_LIBRARY(cufftDestroy(plan));
}

void real_plane() {
  constexpr int kRows = 48, kColumns = 60, kHalf = kColumns / 2 + 1;
  check::Random random(2);
  const auto in = random.values<float>(kRows * kColumns);
  std::vector<Complex> rows(kRows * kColumns), expected(kRows * kHalf);
  for (int row = 0; row < kRows; ++row) {
    const auto line =
        transformed(std::vector<Complex>(in.begin() + row * kColumns, in.begin() + (row + 1) * kColumns), -1);
    std::copy(line.begin(), line.end(), rows.begin() + row * kColumns);
  }
  for (int column = 0; column < kHalf; ++column) {
    std::vector<Complex> line;
    for (int row = 0; row < kRows; ++row) line.push_back(rows[row * kColumns + column]);
    line = transformed(line, -1);
    for (int row = 0; row < kRows; ++row) expected[row * kHalf + column] = line[row];
  }
  check::Device<float> data(in), back(in.size());
  check::Device<cufftComplex> spectrum(expected.size());
  cufftHandle forward, inverse;
  CHECK_LIBRARY(cufftPlan2d(&forward, kRows, kColumns, CUFFT_R2C));
  CHECK_LIBRARY(cufftPlan2d(&inverse, kRows, kColumns, CUFFT_C2R));
  CHECK_LIBRARY(cufftExecR2C(forward, data.get(), spectrum.get()));
  check::close("2D real", parts(spectrum.host()), parts(expected), 1e-5);
  check::checksum("2D real", spectrum.host());
  CHECK_LIBRARY(cufftExecC2R(inverse, spectrum.get(), back.get()));
  auto result = back.host();
  for (float& value : result) value /= kRows * kColumns;
  check::close("2D real and back", result, in, 1e-5);
  CHECK_LIBRARY(cufftDestroy(forward));
  CHECK_LIBRARY(cufftDestroy(inverse));
}

void awkward_length_on_a_stream() {
  constexpr int kCount = 1009;  // a prime
  check::Random random(3);
  std::vector<cufftDoubleComplex> in(kCount);
  std::vector<Complex> values;
  for (auto& value : in) {
    value = {random.next(), random.next()};
    values.emplace_back(value.x, value.y);
  }
  check::Device<cufftDoubleComplex> data(in);
  cudaStream_t stream;
  CHECK_RUNTIME(cudaStreamCreate(&stream));
  cufftHandle plan;
  CHECK_LIBRARY(cufftPlan1d(&plan, kCount, CUFFT_Z2Z, 1));
  CHECK_LIBRARY(cufftSetStream(plan, stream));
  CHECK_LIBRARY(cufftExecZ2Z(plan, data.get(), data.get(), CUFFT_INVERSE));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  check::close("prime length in double", parts(data.host()), parts(transformed(values, 1)), 1e-11);
  CHECK_LIBRARY(cufftDestroy(plan));
  CHECK_RUNTIME(cudaStreamDestroy(stream));
}

}  // namespace

int main() {
  batch();
  real_plane();
  awkward_length_on_a_stream();
  std::printf("PASSED\n");
}
