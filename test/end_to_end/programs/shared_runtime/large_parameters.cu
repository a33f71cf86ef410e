// Kernel parameters up to the 32,764 bytes that devices since Volta take, mixed with small ones and passed by value.
#include "../../../support/cuda_check.hpp"

namespace {

constexpr int kMost = 32764;

template <int kInts>
struct Block {
  int values[kInts];
};

template <int kInts>
__global__ void sum(Block<kInts> block, int index, long long* out) {
  long long total = 0;
  for (int i = 0; i < kInts; ++i) total += block.values[i] * (i % 7 + 1);
  out[index] = total;
}

template <int kInts>
void round_trip() {
  static Block<kInts> block;
  long long expected = 0;
  for (int i = 0; i < kInts; ++i) {
    block.values[i] = i * 31 - 1000;
    expected += static_cast<long long>(block.values[i]) * (i % 7 + 1);
  }
  check::Device<long long> out(4);
  sum<kInts><<<1, 1>>>(block, 3, out.get());
  CHECK_RUNTIME(cudaGetLastError());
  CHECK_RUNTIME(cudaDeviceSynchronize());
  EXPECT(out.host()[3] == expected);
}

}  // namespace

int main() {
  round_trip<1>();
  round_trip<1000>();
  round_trip<1019>();  // 4,092 bytes with the two others: within the 4 KiB of old
  round_trip<1100>();
  round_trip<5000>();
  round_trip<(kMost - 12) / 4 - 1>();  // 32,752 bytes or so, with the alignment of the pointer
  std::printf("PASSED\n");
  return 0;
}
