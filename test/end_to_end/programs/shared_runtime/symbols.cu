// Constant memory up to its limit and device symbols: copies both ways with offsets, addresses, sizes, arrays of
// structures.
#include "../../../support/cuda_check.hpp"

namespace {

constexpr int kWords = 16000;  // 64,000 of the 65,536 bytes

struct Pair {
  int first;
  double second;
};

__constant__ int table[kWords];
__device__ Pair pairs[100];
__device__ float initialised[4] = {1.5f, 2.5f, 3.5f, 4.5f};
__device__ int* chosen;

__global__ void gather(int* out, int step) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kWords) out[i] = table[i * step % kWords];
}
__global__ void swap_pairs() {
  pairs[threadIdx.x] = {int(pairs[threadIdx.x].second), double(pairs[threadIdx.x].first)};
}
__global__ void write_through() { *chosen = 77; }

void constants() {
  std::vector<int> host(kWords), expected(kWords);
  for (int i = 0; i < kWords; ++i) host[i] = i * i;
  check::Device<int> out(kWords);
  for (int round = 0; round < 3; ++round) {
    for (int i = 1000; i < 2000; ++i) host[i] = -i * round;
    if (round == 0) {
      CHECK_RUNTIME(cudaMemcpyToSymbol(table, host.data(), sizeof table));
    } else {
      CHECK_RUNTIME(cudaMemcpyToSymbolAsync(table, host.data() + 1000, 1000 * sizeof(int), 1000 * sizeof(int),
                                            cudaMemcpyHostToDevice, nullptr));
    }
    gather<<<(kWords + 127) / 128, 128>>>(out.get(), 7);
    for (int i = 0; i < kWords; ++i) expected[i] = host[i * 7 % kWords];
    EXPECT(out.host() == expected);
  }
}

void device_symbols() {
  std::vector<Pair> host(100);
  for (int i = 0; i < 100; ++i) host[i] = {i, i * 3.0};
  CHECK_RUNTIME(cudaMemcpyToSymbol(pairs, host.data(), sizeof pairs));
  swap_pairs<<<1, 100>>>();
  CHECK_RUNTIME(cudaMemcpyFromSymbol(host.data(), pairs, 50 * sizeof(Pair), 50 * sizeof(Pair)));
  for (int i = 0; i < 50; ++i) EXPECT(host[i].first == (i + 50) * 3 && host[i].second == i + 50);

  float values[4];
  CHECK_RUNTIME(cudaMemcpyFromSymbol(values, initialised, sizeof values));
  EXPECT(values[0] == 1.5f && values[3] == 4.5f);
  float* address;
  size_t bytes = 0;
  CHECK_RUNTIME(cudaGetSymbolAddress(reinterpret_cast<void**>(&address), initialised));
  CHECK_RUNTIME(cudaGetSymbolSize(&bytes, initialised));
  EXPECT(bytes == sizeof values);
  CHECK_RUNTIME(cudaMemset(address + 1, 0, sizeof(float)));
  CHECK_RUNTIME(cudaMemcpyFromSymbol(values, initialised, sizeof values));
  EXPECT(values[0] == 1.5f && values[1] == 0 && values[2] == 3.5f);

  check::Device<int> target(1);
  int* pointer = target.get();
  CHECK_RUNTIME(cudaMemcpyToSymbol(chosen, &pointer, sizeof pointer));
  write_through<<<1, 1>>>();
  EXPECT(target.host()[0] == 77);
}

}  // namespace

int main() {
  constants();
  device_symbols();
  std::printf("PASSED\n");
  return 0;
}
