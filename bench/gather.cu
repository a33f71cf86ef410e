// Times an embedding gather: kernels that read a few rows of a large table in registered memory of the host, some of
// whose rows the host changes before each launch. Prints one JSON object of microseconds a step; bench/run runs it
// natively and remotely in turn. --small: of a table of 16 MiB; --short: some steps; --quick: a few, to try it out.
// Exit code 1: a row differed from the host's data.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "../examples/check.hpp"
#include "figures.hpp"

namespace {

constexpr unsigned kRowWords = 128, kRowsRead = 64, kRowsChanged = 8;
constexpr size_t kTableBytes = size_t(256) << 20, kSmallTableBytes = size_t(16) << 20;
constexpr unsigned kSeed = 20;
constexpr int kRounds = 50;

// The sum of each row.
__global__ void gather(const uint32_t* table, const uint32_t* rows, uint32_t* sums) {
  __shared__ uint32_t sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  atomicAdd(&sum, table[size_t(rows[blockIdx.x]) * kRowWords + threadIdx.x]);
  __syncthreads();
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

}  // namespace

int main(int argc, char** argv) {
  const size_t bytes = has_option(argc, argv, "--small") ? kSmallTableBytes : kTableBytes;
  const auto row_count = uint32_t(bytes / (kRowWords * sizeof(uint32_t)));
  std::vector<uint32_t> memory(bytes / sizeof(uint32_t), 1);
  // Registered memory begins and ends with pages.
  CHECK_RUNTIME(cudaHostRegister(memory.data(), bytes, cudaHostRegisterMapped));
  uint32_t *table, *rows, *sums;
  CHECK_RUNTIME(cudaHostGetDevicePointer(reinterpret_cast<void**>(&table), memory.data(), 0));
  CHECK_RUNTIME(cudaMalloc(&rows, kRowsRead * sizeof *rows));
  CHECK_RUNTIME(cudaMalloc(&sums, kRowsRead * sizeof *sums));
  std::mt19937 random(kSeed);
  std::vector<uint32_t> chosen(kRowsRead), found(kRowsRead);
  uint32_t step = 0;
  const auto turn = [&] {
    ++step;
    for (uint32_t& row : chosen) row = random() % row_count;
    for (unsigned i = 0; i < kRowsChanged; ++i) {
      for (unsigned word = 0; word < kRowWords; ++word) memory[size_t(chosen[i]) * kRowWords + word] = step;
    }
    CHECK_RUNTIME(cudaMemcpyAsync(rows, chosen.data(), kRowsRead * sizeof *rows, cudaMemcpyHostToDevice));
    gather<<<kRowsRead, kRowWords>>>(table, rows, sums);
    CHECK_RUNTIME(cudaMemcpy(found.data(), sums, kRowsRead * sizeof *sums, cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < kRowsRead; ++i) {
      uint32_t wanted = 0;
      for (unsigned word = 0; word < kRowWords; ++word) wanted += memory[size_t(chosen[i]) * kRowWords + word];
      if (found[i] == wanted) continue;
      std::fprintf(stderr, "step %u: row %u is %u, not %u\n", step, chosen[i], found[i], wanted);
      std::_Exit(1);
    }
  };
  {
    Figures figures;
    figures.set_pace(pace_of(argc, argv));
    figures.add("gather_us", 1e6 * figures.median_seconds(kRounds, turn));
  }
  CHECK_RUNTIME(cudaFree(sums));
  CHECK_RUNTIME(cudaFree(rows));
  CHECK_RUNTIME(cudaHostUnregister(memory.data()));
  return 0;
}
