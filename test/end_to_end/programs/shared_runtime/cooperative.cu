// Cooperative launches: a grid that synchronises with itself, its size limit, and groups smaller than a block.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

#include "../../../support/cuda_check.hpp"

namespace groups = cooperative_groups;

namespace {

// Each round every thread reads what its neighbour wrote in the round before: wrong unless the whole grid waits.
__global__ void rotate(unsigned* a, unsigned* b, unsigned rounds) {
  groups::grid_group grid = groups::this_grid();
  const unsigned size = unsigned(grid.size()), me = unsigned(grid.thread_rank());
  for (unsigned round = 0; round < rounds; ++round) {
    b[me] = a[(me + 1) % size] + 1;
    grid.sync();
    unsigned* swap = a;
    a = b;
    b = swap;
  }
}

__global__ void sum_tiles(const int* in, int* out) {
  groups::thread_block block = groups::this_thread_block();
  auto tile = groups::tiled_partition<16>(block);
  const int sum = groups::reduce(tile, in[block.thread_rank()], groups::plus<int>());
  if (tile.thread_rank() == 0) out[block.thread_rank() / 16] = sum;
}

void whole_grid() {
  int per_processor = 0, processors = 0, supported = 0;
  CHECK_RUNTIME(cudaDeviceGetAttribute(&supported, cudaDevAttrCooperativeLaunch, 0));
  EXPECT(supported == 1);
  CHECK_RUNTIME(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0));
  CHECK_RUNTIME(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, rotate, 64, 0));
  EXPECT(per_processor >= 1);
  const unsigned blocks = unsigned(processors < 32 ? processors : 32), threads = blocks * 64;
  unsigned rounds = 10;
  std::vector<unsigned> start(threads);
  for (unsigned i = 0; i < threads; ++i) start[i] = i * 3;
  check::Device<unsigned> a(start), b(threads);
  unsigned *first = a.get(), *second = b.get();
  void* arguments[] = {&first, &second, &rounds};
  CHECK_RUNTIME(
      cudaLaunchCooperativeKernel(reinterpret_cast<void*>(rotate), dim3(blocks), dim3(64), arguments, 0, nullptr));
  CHECK_RUNTIME(cudaDeviceSynchronize());
  const auto host = a.host();
  for (unsigned i = 0; i < threads; ++i) EXPECT(host[i] == (i + rounds) % threads * 3 + rounds);
  const unsigned too_many = unsigned(processors * per_processor) + 1;
  EXPECT(cudaLaunchCooperativeKernel(reinterpret_cast<void*>(rotate), dim3(too_many), dim3(64), arguments, 0,
                                     nullptr) == cudaErrorCooperativeLaunchTooLarge);
  EXPECT(cudaGetLastError() == cudaErrorCooperativeLaunchTooLarge);
}

void tiles() {
  std::vector<int> values(256);
  for (int i = 0; i < 256; ++i) values[i] = i;
  check::Device<int> in(values), out(16);
  sum_tiles<<<1, 256>>>(in.get(), out.get());
  CHECK_RUNTIME(cudaGetLastError());
  const auto host = out.host();
  for (int i = 0; i < 16; ++i) EXPECT(host[i] == 16 * (16 * i) + 120);
}

}  // namespace

int main() {
  whole_grid();
  tiles();
  std::printf("PASSED\n");
  return 0;
}
