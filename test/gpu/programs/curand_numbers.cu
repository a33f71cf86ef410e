// cuRAND: generators of the host interface and the device interface in a kernel. Moments against theory; the numbers
// are compared between runs.
#include <string>

#include <curand.h>
#include <curand_kernel.h>

#include "../../support/cuda_check.hpp"

namespace {

constexpr size_t kCount = 1 << 18;

__global__ void estimate_pi(unsigned long long seed, unsigned rounds, unsigned* inside) {
  const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  curandStatePhilox4_32_10_t state;
  curand_init(seed, thread, 0, &state);
  unsigned count = 0;
  for (unsigned i = 0; i < rounds; ++i) {
    const float x = curand_uniform(&state), y = curand_uniform(&state);
    count += x * x + y * y <= 1;
  }
  inside[thread] = count;
}

void moments(const char* name, const std::vector<float>& values, double mean, double deviation) {
  double sum = 0, squares = 0;
  for (float value : values) sum += value;
  for (float value : values) squares += (value - sum / values.size()) * (value - sum / values.size());
  const std::vector<double> got{1 + sum / values.size() - mean, std::sqrt(squares / values.size())},
      expected{1, deviation};
  check::close(name, got, expected, 1e-2);
  check::checksum(name, values);
}

void generate(curandRngType_t type, const char* name) {
  curandGenerator_t generator;
  check::Device<float> values(kCount);
  CHECK_LIBRARY(curandCreateGenerator(&generator, type));
  if (type != CURAND_RNG_QUASI_SOBOL32) CHECK_LIBRARY(curandSetPseudoRandomGeneratorSeed(generator, 1234));
  CHECK_LIBRARY(curandGenerateUniform(generator, values.get(), kCount));
  moments((std::string(name) + " uniform").c_str(), values.host(), 0.5, std::sqrt(1.0 / 12));
  CHECK_LIBRARY(curandGenerateNormal(generator, values.get(), kCount, 3, 2));
  moments((std::string(name) + " normal").c_str(), values.host(), 3, 2);
  CHECK_LIBRARY(curandDestroyGenerator(generator));
}

}  // namespace

int main() {
  generate(CURAND_RNG_PSEUDO_XORWOW, "xorwow");
  generate(CURAND_RNG_PSEUDO_PHILOX4_32_10, "philox");
  generate(CURAND_RNG_PSEUDO_MTGP32, "mtgp32");
  generate(CURAND_RNG_QUASI_SOBOL32, "sobol32");

  constexpr unsigned kThreads = 64 * 128, kRounds = 200;
  check::Device<unsigned> inside(kThreads);
  estimate_pi<<<64, 128>>>(42, kRounds, inside.get());
  CHECK_RUNTIME(cudaGetLastError());
  double sum = 0;
  for (unsigned count : inside.host()) sum += count;
  check::close("pi in a kernel", std::vector<double>{4 * sum / (double(kThreads) * kRounds)},
               std::vector<double>{3.14159265}, 5e-3);
  check::checksum("pi in a kernel", inside.host());
  std::printf("PASSED\n");
}
