// Exchange between lanes and blocks: kernels/warps.cu and kernels/atomics.cu.
#include <doctest/doctest.h>

#include <bit>

#include "test/server/software_device/execution/engine_fixture.hpp"

namespace gpuwire::software_device::test {
namespace {

struct Warps : TestDevice {
  Warps() { REQUIRE(load(nvcc_ptx("warps")) == ""); }
};

struct Atomics : TestDevice {
  Atomics() { REQUIRE(load(nvcc_ptx("atomics")) == ""); }
};

TEST_CASE_FIXTURE(Warps, "votes and matches see the lanes of their mask") {
  unsigned* out = array<unsigned>(256);
  CHECK(run("votes", {1}, {32}, out).message == "");
  unsigned thirds = 0;
  for (unsigned t = 0; t < 32; t += 3) thirds |= 1u << t;
  for (unsigned t = 0; t < 32; ++t) {
    CHECK(out[t] == thirds);
    CHECK(out[32 + t] == 3);
    CHECK(out[64 + t] == (t % 2 ? 0xaaaa0000u : 0x55555555u));
    unsigned fives = 0;
    for (unsigned i = 0; i < 32; ++i) fives |= static_cast<unsigned>(i / 5 == t / 5) << i;
    CHECK(out[96 + t] == fives);
    CHECK(out[128 + t] == 0xffffffff);
    CHECK(out[160 + t] == 1);
    CHECK(out[192 + t] == 0);
    CHECK(out[224 + t] == 0);
  }
}

TEST_CASE_FIXTURE(Warps, "shuffles take values from the lanes that they name") {
  unsigned* out = array<unsigned>(192);
  CHECK(run("shuffles", {1}, {32}, out).message == "");
  for (unsigned t = 0; t < 32; ++t) {
    CHECK(out[t] == 100 + t * 7 % 32);
    CHECK(out[32 + t] == 100 + (t < 3 ? t : t - 3));
    CHECK(out[64 + t] == 100 + (t % 8 + 5 < 8 ? t + 5 : t));
    CHECK(out[96 + t] == 100 + (t ^ 6));
    CHECK(out[128 + t] == 31 - t);
    CHECK(out[160 + t] == 100 + (t % 4 < 2 ? t : t - 2));
  }
}

TEST_CASE_FIXTURE(Warps, "a source lane that takes no part in a shuffle gives zero") {
  unsigned* out = array<unsigned>(32);
  CHECK(run("sum_of_few", {1}, {32}, out).message == "");
  CHECK(out[0] == 36);
  for (unsigned t = 8; t < 32; ++t) CHECK(out[t] == t + 1);
}

TEST_CASE_FIXTURE(Warps, "lanes that come late to a shuffle are waited for") {
  unsigned* out = array<unsigned>(64);
  CHECK(run("late_shuffle", {1}, {32}, out).message == "");
  unsigned value[32], low[16];
  for (unsigned t = 0; t < 32; ++t) {
    value[t] = t;
    for (unsigned i = 0; i < t % 7; ++i) value[t] = value[t] * 3 + 1;
  }
  for (unsigned t = 0; t < 16; ++t) {
    low[t] = value[t];
    for (unsigned i = 0; i < t; ++i) low[t] ^= i;
  }
  for (unsigned t = 0; t < 32; ++t) {
    CHECK(out[t] == value[t ^ 1]);
    CHECK(out[32 + t] == (t < 16 ? low[15 - t] : value[16 + t % 3]));
  }
}

TEST_CASE_FIXTURE(Warps, "cooperative groups make tiles and coalesced groups") {
  unsigned* out = array<unsigned>(192);
  CHECK(run("tiles", {1}, {64}, out).message == "");
  for (unsigned tile = 0; tile < 8; ++tile) CHECK(out[tile] == tile * 64 + 28);
  for (unsigned t = 0; t < 64; t += 3) {
    unsigned size = 11;
    CHECK(out[64 + t] == (size - 1) * 100 + size);
  }
  for (unsigned t = 0; t < 64; ++t) CHECK(out[128 + t] == 0xaa);
}

TEST_CASE_FIXTURE(Warps, "named barriers join the warps that name them") {
  int* out = array<int>(128);
  CHECK(run("named_barriers", {1}, {128}, out).message == "");
  for (int t = 0; t < 128; ++t) CHECK(out[t] == (t ^ 32) * 3);
  CHECK(run("producer_consumer", {1}, {64}, out).message == "");
  for (int t = 0; t < 32; ++t) CHECK(out[t] == 63 - t);
}

TEST_CASE_FIXTURE(Warps, "a cooperative grid meets at its barrier") {
  constexpr int kCount = 24 * 64;
  int* values = array<int>(kCount);
  int* out = array<int>(kCount);
  std::vector<int> expected(kCount);
  for (int i = 0; i < kCount; ++i) expected[i] = values[i] = i * 7 % 13;
  cooperative = true;
  CHECK(run("grid_sums", {24}, {64}, values, out, 5).message == "");
  for (int round = 0; round < 5; ++round) {
    std::vector<int> before = expected;
    for (int i = 0; i < kCount; ++i) expected[i] += before[(i + 1) % kCount];
  }
  for (int i = 0; i < kCount; ++i) REQUIRE(out[i] == expected[i]);
}

TEST_CASE_FIXTURE(Warps, "a grid barrier without a cooperative launch traps, as on a device") {
  CHECK(run("grid_sums", {2}, {32}, array<int>(64), array<int>(64), 1).fault == Fault::trap);
}

TEST_CASE_FIXTURE(Atomics, "atomics of every width add up over all blocks") {
  int* i = array<int>(8);
  unsigned* u = array<unsigned>(8);
  auto* l = array<unsigned long long>(4);
  float* f = array<float>(1);
  double* d = array<double>(1);
  auto* h = array<uint16_t>(2);
  auto* h2 = array<uint16_t>(2);
  auto* b = array<uint16_t>(2);
  auto* s = array<uint16_t>(2);
  u[0] = 0xffffffff;
  constexpr int kThreads = 128;
  CHECK(run("all_atomics", {4}, {32}, i, u, l, f, d, h, h2, b, s).message == "");
  int sum = kThreads * (kThreads - 1) / 2;
  CHECK(i[0] == sum);
  CHECK(i[1] == -sum);
  CHECK(i[2] == -(kThreads - 1));
  CHECK(i[3] == kThreads - 1);
  CHECK(u[0] == 0);
  CHECK(u[1] == 0xffffffff);
  CHECK(u[2] == 0);
  CHECK(u[3] == kThreads % 10);
  CHECK(u[4] == (10 - kThreads % 10) % 10);
  CHECK(l[0] == 0x100000001ull * kThreads);
  CHECK(l[1] == static_cast<unsigned long long>(kThreads - 1) << 33);
  CHECK(static_cast<long long>(l[2]) == static_cast<long long>(-(kThreads - 1)) * (1ll << 33));
  CHECK(f[0] == 64);
  CHECK(d[0] == 32);
  CHECK(h[0] == 0x5800);  // 128
  CHECK(h2[0] == 0x5800);
  CHECK(h2[1] == 0x5c00);  // 256
  CHECK(b[0] == 0x4300);   // 128
  CHECK(s[0] == 3 * kThreads);
  CHECK(i[4] == kThreads);
  CHECK(i[5] == kThreads);
}

TEST_CASE_FIXTURE(Atomics, "atomics in shared memory belong to the block") {
  int* out = array<int>(24);
  float* sums = array<float>(3);
  CHECK(run("shared_atomics", {3}, {100}, out, sums).message == "");
  for (int i = 0; i < 24; ++i) CHECK(out[i] == (i % 8 < 4 ? 13 : 12) + 100000);
  for (int i = 0; i < 3; ++i) CHECK(sums[i] == 150.0f);
}

TEST_CASE_FIXTURE(Atomics, "acquire and release order what libcu++ emits") {
  int* counter = array<int>(1);
  int* flag = array<int>(1);
  int* out = array<int>(96);
  CHECK(run("cuda_atomics", {3}, {32}, counter, flag, out).message == "");
  CHECK(*counter == 192);
  for (int i = 0; i < 96; ++i) CHECK(out[i] == 1);
}

}  // namespace
}  // namespace gpuwire::software_device::test
