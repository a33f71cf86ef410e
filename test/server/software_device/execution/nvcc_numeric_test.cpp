// Arithmetic of kernels/numeric.cu against the CPU's.
#include <doctest/doctest.h>

#include <bit>
#include <cfenv>
#include <cmath>
#include <random>

#include "test/server/software_device/execution/engine_fixture.hpp"

namespace gpuwire::software_device::test {
namespace {

constexpr unsigned kSeed = 20240611;
constexpr int kCount = 512;

struct Numeric : TestDevice {
  Numeric() {
    REQUIRE(load(nvcc_ptx("numeric")) == "");
    MESSAGE("seed " << kSeed);
  }
  Dim3 grid{kCount / 128}, block{128};
  std::mt19937_64 random{kSeed};

  float any_float(int i) {
    switch (i % 8) {
      case 0: return std::bit_cast<float>(static_cast<uint32_t>(random()));               // any bits
      case 1: return std::bit_cast<float>(static_cast<uint32_t>(random()) & 0x807fffff);  // subnormal
      default: return static_cast<float>(static_cast<double>(static_cast<int64_t>(random())) * 0x1p-60);
    }
  }
  double any_double(int i) {
    return i % 8 == 0 ? std::bit_cast<double>(random()) : static_cast<double>(static_cast<int64_t>(random())) * 0x1p-58;
  }
};

template <class F>
auto with_mode(int mode, F f) {
  std::fesetround(mode);
  volatile auto result = f();  // stored before the mode changes back
  std::fesetround(FE_TONEAREST);
  return result;
}

// f32 results of a GPU have one NaN.
bool same(float device, float host) {
  if (host != host) return std::bit_cast<uint32_t>(device) == 0x7fffffff;
  return std::bit_cast<uint32_t>(device) == std::bit_cast<uint32_t>(host);
}
bool same(double device, double host) {
  if (host != host) return device != device;
  return std::bit_cast<uint64_t>(device) == std::bit_cast<uint64_t>(host);
}

TEST_CASE_FIXTURE(Numeric, "64-bit integer arithmetic equals the CPU's") {
  using U = unsigned long long;
  U* a = array<U>(kCount);
  U* b = array<U>(kCount);
  U* out = array<U>(kCount * 16);
  for (int i = 0; i < kCount; ++i) a[i] = random() >> (i * 7 % 64), b[i] = random() >> (i * 5 % 64);
  CHECK(run("integers64", grid, block, a, b, out, kCount).message == "");
  int wrong = 0;
  for (int i = 0; i < kCount; ++i) {
    U x = a[i], y = b[i];
    long long sx = static_cast<long long>(x), sy = static_cast<long long>(y);
    __extension__ using Wide = unsigned __int128;
    __extension__ using SignedWide = __int128;
    Wide product = static_cast<Wide>(x) * y;
    const U* o = out + i * 16;
    wrong += o[0] != x + y || o[1] != x * y || o[2] != (y ? x / y : 0) || o[3] != (y ? x % y : 0);
    wrong += o[4] != static_cast<U>(sy > 0 ? sx / sy : 0) || o[5] != static_cast<U>(sy > 0 ? sx % sy : 0);
    wrong += o[6] != static_cast<U>(product >> 64) || o[7] != static_cast<U>((static_cast<SignedWide>(sx) * sy) >> 64);
    wrong += o[8] != x << (y & 63) || o[9] != static_cast<U>(sx >> (y & 63));
    wrong += o[10] !=
             static_cast<U>(std::popcount(x) + 100 * std::countl_zero(y) + 10000 * (x ? std::countr_zero(x) + 1 : 0));
    wrong += o[12] != static_cast<U>(std::min(sx, sy));
    Wide more = product + x;
    wrong += o[15] != (static_cast<U>(more >> 64) ^ static_cast<U>(more));
  }
  CHECK(wrong == 0);
}

TEST_CASE_FIXTURE(Numeric, "quotients and remainders of 128-bit integers equal the CPU's") {
  using U = unsigned long long;
  U* a = array<U>(2 * kCount);
  U* b = array<U>(2 * kCount);
  U* out = array<U>(4 * kCount);
  for (int i = 0; i < 2 * kCount; ++i) {
    // Numbers of every length: upper words may be zero.
    a[i] = random() >> (i * 11 % 64);
    b[i] = i % 2 == 0 ? random() | 1 : i % 6 == 1 ? 0 : random() >> (i * 5 % 64);
  }
  CHECK(run("quotients128", grid, block, a, b, out, kCount).message == "");
  int wrong = 0;
  for (int i = 0; i < kCount; ++i) {
    __extension__ using Wide = unsigned __int128;
    const Wide x = static_cast<Wide>(a[2 * i + 1]) << 64 | a[2 * i],
               y = static_cast<Wide>(b[2 * i + 1]) << 64 | b[2 * i];
    const Wide quotient = x / y, remainder = x % y;
    const U* o = out + 4 * i;
    wrong += o[0] != static_cast<U>(quotient) || o[1] != static_cast<U>(quotient >> 64);
    wrong += o[2] != static_cast<U>(remainder) || o[3] != static_cast<U>(remainder >> 64);
  }
  CHECK(wrong == 0);
}

TEST_CASE_FIXTURE(Numeric, "nvcc's rsqrt of f64 is right to the last bit but one") {
  double* a = array<double>(kCount);
  double* out = array<double>(kCount);
  for (int i = 0; i < kCount; ++i) a[i] = std::fabs(any_double(i));
  CHECK(run("reciprocal_roots", grid, block, a, out, kCount).message == "");
  int wrong = 0;
  for (int i = 0; i < kCount; ++i) {
    const auto expected = static_cast<double>(1 / std::sqrt(static_cast<long double>(a[i])));
    wrong += !(out[i] == expected || std::fabs(out[i] - expected) <= expected * 0x1p-52) && !std::isnan(a[i]);
  }
  CHECK(wrong == 0);
}

TEST_CASE_FIXTURE(Numeric, "f32 arithmetic is exact in every rounding mode") {
  float* a = array<float>(kCount);
  float* b = array<float>(kCount);
  float* out = array<float>(kCount * 16);
  for (int i = 0; i < kCount; ++i) a[i] = any_float(i), b[i] = any_float(i / 3);
  CHECK(run("rounded", grid, block, a, b, out, kCount).message == "");
  int wrong[16] = {};
  for (int i = 0; i < kCount; ++i) {
    volatile float x = a[i], y = b[i];
    const float* o = out + i * 16;
    wrong[0] += !same(o[0], x + y);
    wrong[1] += !same(o[1], with_mode(FE_TOWARDZERO, [&] { return x + y; }));
    wrong[2] += !same(o[2], with_mode(FE_UPWARD, [&] { return x + y; }));
    wrong[3] += !same(o[3], with_mode(FE_DOWNWARD, [&] { return x + y; }));
    wrong[4] += !same(o[4], with_mode(FE_TOWARDZERO, [&] { return x * y; }));
    wrong[5] += !same(o[5], with_mode(FE_UPWARD, [&] { return x / y; }));
    volatile float magnitude = std::fabs(x);
    wrong[6] += !same(o[6], with_mode(FE_DOWNWARD, [&] { return std::sqrt(magnitude); }));
    wrong[7] += !same(o[7], with_mode(FE_TOWARDZERO, [&] { return 1.0f / y; }));
    wrong[8] += !same(o[8], with_mode(FE_UPWARD, [&] { return std::fma(x, y, x); }));
    wrong[9] += !same(o[9], std::fma(x, y, y));
    wrong[10] += !same(o[10], x / y);
    wrong[11] += !same(o[11], std::sqrt(std::fabs(y)));
    wrong[12] += !same(o[12], x != x ? 0.0f : std::fmin(std::fmax(x, 0.0f), 1.0f) + 0.0f);
    if (x == x || y == y) wrong[13] += !same(o[13], std::fmin(x, y));
    if (x == x || y == y) wrong[14] += !same(o[14], std::fmax(x, y));
    wrong[15] += !same(o[15], std::rint(x) + std::floor(y) + std::ceil(x) + std::trunc(y));
  }
  for (int k = 0; k < 16; ++k) {
    CAPTURE(k);
    CHECK(wrong[k] == 0);
  }
}

TEST_CASE_FIXTURE(Numeric, "f64 arithmetic is exact in every rounding mode") {
  double* a = array<double>(kCount);
  double* b = array<double>(kCount);
  double* out = array<double>(kCount * 8);
  for (int i = 0; i < kCount; ++i) a[i] = any_double(i), b[i] = any_double(i / 3);
  CHECK(run("rounded_double", grid, block, a, b, out, kCount).message == "");
  int wrong[7] = {};
  for (int i = 0; i < kCount; ++i) {
    volatile double x = a[i], y = b[i];
    const double* o = out + i * 8;
    wrong[0] += !same(o[0], with_mode(FE_TOWARDZERO, [&] { return x + y; }));
    wrong[1] += !same(o[1], with_mode(FE_UPWARD, [&] { return x * y; }));
    wrong[2] += !same(o[2], with_mode(FE_DOWNWARD, [&] { return x / y; }));
    wrong[3] += !same(o[3], std::sqrt(std::fabs(x)));
    wrong[4] += !same(o[4], with_mode(FE_TOWARDZERO, [&] { return std::fma(x, y, x); }));
    wrong[5] += !same(o[5], x / y);
    wrong[6] += !same(o[6], with_mode(FE_UPWARD, [&] { return 1.0 / y; }));
  }
  for (int k = 0; k < 7; ++k) {
    CAPTURE(k);
    CHECK(wrong[k] == 0);
  }
}

// Round a double to a format with `bits` of precision by the definition: nearest multiple of the last place.
double rounded_to(double v, int bits, int lowest_exponent) {
  if (v == 0 || !std::isfinite(v)) return v;
  int exponent = std::max(std::ilogb(v), lowest_exponent);
  return std::ldexp(std::nearbyint(std::ldexp(v, bits - 1 - exponent)), exponent - bits + 1);
}
float to_half(double v) {
  double r = rounded_to(v, 11, -14);
  return static_cast<float>(std::fabs(r) > 65504 ? std::copysign(INFINITY, r) : r);
}
float to_brain(double v) { return static_cast<float>(rounded_to(v, 8, -126)); }

TEST_CASE_FIXTURE(Numeric, "half and bfloat16 arithmetic rounds once") {
  float* a = array<float>(kCount);
  float* b = array<float>(kCount);
  float* out = array<float>(kCount * 16);
  for (int i = 0; i < kCount; ++i) {
    a[i] = std::ldexp(static_cast<float>(static_cast<int32_t>(random())), static_cast<int>(random() % 26) - 42);
    b[i] = std::ldexp(static_cast<float>(static_cast<int32_t>(random())), static_cast<int>(random() % 26) - 42);
  }
  CHECK(run("halves", grid, block, a, b, out, kCount).message == "");
  int wrong[16] = {};
  for (int i = 0; i < kCount; ++i) {
    double x = to_half(a[i]), y = to_half(b[i]), u = to_brain(a[i]), v = to_brain(b[i]);
    const float* o = out + i * 16;
    wrong[0] += o[0] != to_half(x + y);
    wrong[1] += o[1] != to_half(x * y);
    wrong[2] += o[2] != to_half(static_cast<double>(static_cast<long double>(x) * y + x));
    if (y != 0 && std::fabs(x / y) < 65000) wrong[3] += std::fabs(o[3] - x / y) > std::fabs(x / y) * 0x1p-10 + 0x1p-24;
    wrong[4] += o[4] != to_half(x * x);
    wrong[5] += o[5] != to_half(y * y);
    wrong[6] += (o[6] != 0) != (x < y);
    wrong[7] += std::fabs(o[7] - std::sqrt(std::fabs(x))) > std::sqrt(std::fabs(x)) * 0x1p-10 + 0x1p-24;
    wrong[8] += o[8] != to_brain(u + v);
    wrong[9] += o[9] != to_brain(u * v);
    wrong[10] += o[10] != to_brain(u - v);
    wrong[11] += (o[11] != 0) != (u < v);
    wrong[12] += std::fabs(o[12]) > std::fabs(a[i]) || std::fabs(o[12] - a[i]) > std::fabs(a[i]) * 0x1p-10 + 0x1p-24;
    wrong[13] += o[13] < b[i] || std::fabs(o[13] - b[i]) > std::fabs(b[i]) * 0x1p-10 + 0x1p-24;
    wrong[14] += std::isfinite(x) && o[14] != static_cast<float>(std::nearbyint(x));
    wrong[15] += o[15] != static_cast<float>(std::fmax(x, y));
  }
  for (int k = 0; k < 16; ++k) {
    CAPTURE(k);
    CHECK(wrong[k] == 0);
  }
}

double ulps(double device, double host, double unit) {
  if (device == host || (device != device && host != host)) return 0;
  if (!std::isfinite(device) || !std::isfinite(host)) return 1e9;
  int exponent = host == 0 ? -1022 : std::ilogb(host);
  return std::fabs(device - host) / std::fmax(std::ldexp(unit, exponent), 1e-300);
}

TEST_CASE_FIXTURE(Numeric, "nvcc's f32 functions stay within their documented errors") {
  float* a = array<float>(kCount);
  float* out = array<float>(kCount * 16);
  for (int i = 0; i < kCount; ++i)
    a[i] = static_cast<float>(static_cast<double>(static_cast<int64_t>(random())) * 0x1p-61) *
           (i % 5 == 0 ? 300.0f : 1.0f);
  CHECK(run("functions_float", grid, block, a, out, kCount).message == "");
  double worst[16] = {};
  for (int i = 0; i < kCount; ++i) {
    double x = a[i], p = std::fabs(a[i]) + 0.01f;
    double expected[16] = {std::sin(x),     std::cos(x),   std::tan(x),
                           std::exp(x),     std::log(p),   std::pow(p, static_cast<double>(1.7f)),
                           std::erf(x),     std::tanh(x),  std::atan2(x, p),
                           std::cbrt(x),    std::log1p(p), std::expm1(x),
                           std::lgamma(p),  std::asinh(x), std::fmod(x, static_cast<double>(1.3f)),
                           std::hypot(x, p)};
    for (int k = 0; k < 16; ++k) {
      double host = static_cast<float>(expected[k]);
      if (std::fabs(host) < 1e-30 || (k == 12 && std::fabs(p - 1.5) < 1)) continue;
      worst[k] = std::fmax(worst[k], ulps(out[i * 16 + k], std::isfinite(host) ? expected[k] : host, 0x1p-23));
    }
  }
  for (int k = 0; k < 16; ++k) {
    CAPTURE(k);
    CHECK(worst[k] <= 10);
  }
}

TEST_CASE_FIXTURE(Numeric, "nvcc's f64 functions stay within their documented errors") {
  double* a = array<double>(kCount);
  double* out = array<double>(kCount * 16);
  for (int i = 0; i < kCount; ++i)
    a[i] = static_cast<double>(static_cast<int64_t>(random())) * 0x1p-61 * (i % 5 == 0 ? 300.0 : 1.0);
  CHECK(run("functions_double", grid, block, a, out, kCount).message == "");
  double worst[16] = {};
  for (int i = 0; i < kCount; ++i) {
    double x = a[i], p = std::fabs(a[i]) + 0.01;
    double expected[16] = {std::sin(x),          std::cos(x),       std::tan(x),       std::exp(x),
                           std::log(p),          std::pow(p, 1.7),  std::erf(x),       std::tanh(x),
                           std::atan2(x, p),     std::cbrt(x),      std::log1p(p),     std::expm1(x),
                           std::tgamma(p * 0.1), std::acosh(p + 1), std::fmod(x, 1.3), std::hypot(x, p)};
    for (int k = 0; k < 16; ++k) worst[k] = std::fmax(worst[k], ulps(out[i * 16 + k], expected[k], 0x1p-52));
  }
  for (int k = 0; k < 16; ++k) {
    CAPTURE(k);
    CHECK(worst[k] <= 12);
  }
}

TEST_CASE_FIXTURE(Numeric, "fast functions stay within their documented errors") {
  float* a = array<float>(kCount);
  float* out = array<float>(kCount * 8);
  for (int i = 0; i < kCount; ++i) a[i] = static_cast<float>(i - 256) * 0.01f;
  CHECK(run("fast_functions", grid, block, a, out, kCount).message == "");
  for (int i = 0; i < kCount; ++i) {
    double x = a[i];
    const float* o = out + i * 8;
    CHECK(std::fabs(o[0] - std::sin(x)) < 0x1p-20);
    CHECK(std::fabs(o[1] - std::cos(x)) < 0x1p-20);
    CHECK(std::fabs(o[2] / std::exp(x) - 1) < 1e-6);
    CHECK(std::fabs(o[3] - std::log(std::fabs(x) + 1)) < 1e-6);
    CHECK(std::fabs(o[4] * std::sqrt(std::fabs(x) + 1) - 1) < 1e-6);
    CHECK(std::fabs(o[5] - x / 3) < 1e-6);
    CHECK(std::fabs(o[6] / std::pow(2.5, x) - 1) < 1e-5);
  }
}

// Returns PTX's result of a conversion out of range: the nearest value; of a NaN, zero or the lowest bit pattern.
template <class D>
D clamp_to(double v, D nan_value) {
  if (v != v) return nan_value;
  if (v >= std::ldexp(1.0, std::numeric_limits<D>::digits)) return std::numeric_limits<D>::max();
  if (v <= static_cast<double>(std::numeric_limits<D>::min())) return std::numeric_limits<D>::min();
  return static_cast<D>(v);
}

TEST_CASE_FIXTURE(Numeric, "conversions clamp, and know NaN") {
  double* a = array<double>(kCount);
  long long* out = array<long long>(kCount * 16);
  const double edges[] = {0.0,          -0.0,          0.5,          1.5,     2.5,     -0.5,   -1.5, 2147483647.5,
                          2147483648.0, -2147483648.5, 4294967295.5, 9.3e18,  -9.3e18, 1.9e19, NAN,  INFINITY,
                          -INFINITY,    1e-310,        65519.0,      65520.0, 6e-8,    3e-8,   1e300};
  for (int i = 0; i < kCount; ++i) a[i] = i < 23 ? edges[i] : any_double(i);
  CHECK(run("conversions", grid, block, a, out, kCount).message == "");
  int wrong[16] = {};
  for (int i = 0; i < kCount; ++i) {
    double x = a[i];
    volatile float f = static_cast<float>(x);
    double fd = f;
    const long long* o = out + i * 16;
    wrong[0] += o[0] != clamp_to<int>(std::nearbyint(x), INT32_MIN);
    wrong[1] += o[1] != static_cast<long long>(clamp_to<unsigned>(std::trunc(x), 0x80000000u));
    wrong[2] += o[2] != clamp_to<long long>(std::floor(x), INT64_MIN);
    wrong[3] += static_cast<unsigned long long>(o[3]) != clamp_to<unsigned long long>(std::ceil(x), uint64_t{1} << 63);
    wrong[4] += o[4] != clamp_to<int>(std::nearbyint(fd), 0);
    wrong[5] += o[5] != static_cast<long long>(clamp_to<unsigned>(std::trunc(fd), 0));
    wrong[6] += o[6] != clamp_to<long long>(std::floor(fd), INT64_MIN);
    wrong[7] += static_cast<unsigned long long>(o[7]) != clamp_to<unsigned long long>(std::ceil(fd), uint64_t{1} << 63);
    volatile int narrow = static_cast<int>(o[2]);
    wrong[10] += static_cast<int>(o[10]) !=
                 std::bit_cast<int>(with_mode(FE_TOWARDZERO, [&] { return static_cast<float>(narrow); }));
    volatile long long wide = static_cast<long long>(static_cast<unsigned long long>(o[6]) * 1237),
                       other = static_cast<long long>(static_cast<unsigned long long>(o[2]) * 77777);
    wrong[11] += o[11] != std::bit_cast<long long>(with_mode(FE_UPWARD, [&] { return static_cast<double>(wide); }));
    wrong[12] +=
        static_cast<int>(o[12]) != std::bit_cast<int>(static_cast<float>(static_cast<unsigned long long>(wide)));
    wrong[13] += static_cast<int>(o[13]) !=
                 std::bit_cast<int>(with_mode(FE_DOWNWARD, [&] { return static_cast<float>(other); }));
    if (x == x) wrong[15] += static_cast<int>(o[15]) != std::bit_cast<int>(static_cast<float>(f));
  }
  for (int k = 0; k < 16; ++k) {
    CAPTURE(k);
    CHECK(wrong[k] == 0);
  }
}

}  // namespace
}  // namespace gpuwire::software_device::test
