// Common code of the tests' CUDA programs: checks that end the program, a seeded generator, device arrays, comparisons
// with a named tolerance. `close` prints "NAME: right, within TOLERANCE"; `checksum` prints "CHECKSUM NAME HEX", which
// the runner compares between native and remote.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>

#include "../../examples/check.hpp"

#define CHECK_LIBRARY(call)                                                                    \
  do {                                                                                         \
    int check_status = static_cast<int>(call);                                                 \
    if (check_status != 0) {                                                                   \
      std::fprintf(stderr, "%s:%d: %s: status %d\n", __FILE__, __LINE__, #call, check_status); \
      std::exit(EXIT_FAILURE);                                                                 \
    }                                                                                          \
  } while (0)
#define EXPECT(condition)                                                            \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(EXIT_FAILURE);                                                       \
    }                                                                                \
  } while (0)

namespace check {

// Values in -1..1 from a seed, the same on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2654435769u + 1) {}
  float next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return float(int32_t(state_ >> 32)) * (1.0f / 2147483648.0f);
  }
  template <typename T>
  std::vector<T> values(size_t count) {
    std::vector<T> all(count);
    for (T& value : all) value = T(next());
    return all;
  }

 private:
  uint64_t state_;
};

// Device memory of `count` elements, freed with the object.
template <typename T>
class Device {
 public:
  explicit Device(size_t count) : count_(count) { CHECK_RUNTIME(cudaMalloc(&data_, count * sizeof(T))); }
  explicit Device(const std::vector<T>& host) : Device(host.size()) {
    CHECK_RUNTIME(cudaMemcpy(data_, host.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() { cudaFree(data_); }
  T* get() const { return data_; }
  std::vector<T> host() const {
    std::vector<T> all(count_);
    CHECK_RUNTIME(cudaMemcpy(all.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return all;
  }

 private:
  T* data_ = nullptr;
  size_t count_;
};

// Returns the norm of the difference relative to the norm of the expected values.
template <typename Got, typename Expected>
void close(const char* name, const Got& got, const Expected& expected, double tolerance) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double want = double(expected[i]), error = double(got[i]) - want;
    difference += error * error;
    norm += want * want;
  }
  const double relative = std::sqrt(difference / (norm > 0 ? norm : 1));
  const bool right = relative <= tolerance;  // false for a NaN
  std::printf("%s: %s, within %g\n", name, right ? "right" : "WRONG", tolerance);
  if (!right) {
    std::fprintf(stderr, "%s: relative error %g\n", name, relative);
    std::exit(EXIT_FAILURE);
  }
}

// FNV-1a of the bytes of a result that is the same in every run.
template <typename T>
void checksum(const char* name, const std::vector<T>& values) {
  uint64_t sum = 14695981039346656037u;
  const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
  for (size_t i = 0; i < values.size() * sizeof(T); ++i) sum = (sum ^ bytes[i]) * 1099511628211u;
  std::printf("CHECKSUM %s %016llx\n", name, static_cast<unsigned long long>(sum));
}

// Column-major C = A (rows x inner) * B (inner x columns) in double.
template <typename T>
std::vector<double> product(const std::vector<T>& a, const std::vector<T>& b, int rows, int columns, int inner) {
  std::vector<double> c(size_t(rows) * columns, 0.0);
  for (int column = 0; column < columns; ++column) {
    for (int k = 0; k < inner; ++k) {
      const double factor = double(b[size_t(column) * inner + k]);
      for (int row = 0; row < rows; ++row) c[size_t(column) * rows + row] += double(a[size_t(k) * rows + row]) * factor;
    }
  }
  return c;
}

}  // namespace check
