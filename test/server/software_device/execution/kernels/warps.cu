// Exchange between the lanes of a warp.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

extern "C" __global__ void votes(unsigned* out) {
  int t = threadIdx.x;
  out[t] = __ballot_sync(0xffffffff, t % 3 == 0);
  out[32 + t] =
      __any_sync(0xffffffff, t == 9) + 2 * __all_sync(0xffffffff, t < 32) + 4 * __all_sync(0xffffffff, t < 31);
  if (t % 2) out[64 + t] = __ballot_sync(0xaaaaaaaa, t > 16);
  else out[64 + t] = __activemask();
  out[96 + t] = __match_any_sync(0xffffffff, t / 5);
  int same;
  out[128 + t] = __match_all_sync(0xffffffff, t / 32, &same);
  out[160 + t] = same;
  out[192 + t] = __match_all_sync(0xffffffff, t / 31, &same);
  out[224 + t] = same;
}

extern "C" __global__ void shuffles(unsigned* out) {
  int t = threadIdx.x;
  unsigned value = 100 + t;
  out[t] = __shfl_sync(0xffffffff, value, (t * 7) % 32);
  out[32 + t] = __shfl_up_sync(0xffffffff, value, 3);
  out[64 + t] = __shfl_down_sync(0xffffffff, value, 5, 8);
  out[96 + t] = __shfl_xor_sync(0xffffffff, value, 6, 16);
  unsigned long long wide = __shfl_sync(0xffffffff, 0x100000000ull * t + 7, 31 - t);
  out[128 + t] = wide >> 32;
  out[160 + t] = __shfl_up_sync(0xffffffff, value, 2, 4);
}

// The lanes reach the shuffle on different paths and at different times. The first eight lanes compute a sum, with the
// distances of a whole warp.
extern "C" __global__ void sum_of_few(unsigned* out) {
  unsigned value = threadIdx.x + 1;
  unsigned few = __ballot_sync(0xffffffff, threadIdx.x < 8);
  if (threadIdx.x < 8) {
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_down_sync(few, value, distance);
  }
  out[threadIdx.x] = value;
}

extern "C" __global__ void late_shuffle(unsigned* out) {
  unsigned t = threadIdx.x, value = t;
  for (unsigned i = 0; i < t % 7; ++i) value = value * 3 + 1;
  unsigned got = __shfl_xor_sync(0xffffffff, value, 1);
  out[t] = got;
  if (t < 16) {
    for (unsigned i = 0; i < t; ++i) value ^= i;
    out[32 + t] = __shfl_sync(0x0000ffff, value, 15 - t);
  } else {
    out[32 + t] = __shfl_sync(0xffff0000, value, 16 + t % 3);
  }
}

extern "C" __global__ void tiles(unsigned* out) {
  auto block = cg::this_thread_block();
  auto tile = cg::tiled_partition<8>(block);
  unsigned value = threadIdx.x;
  for (int step = tile.size() / 2; step > 0; step /= 2) value += tile.shfl_down(value, step);
  if (tile.thread_rank() == 0) out[threadIdx.x / 8] = value;
  if (threadIdx.x % 3 == 0) {
    auto active = cg::coalesced_threads();
    unsigned sum = active.thread_rank();
    sum = active.shfl(sum, active.size() - 1);
    out[64 + threadIdx.x] = sum * 100 + active.size();
  }
  tile.sync();
  out[128 + threadIdx.x] = tile.ballot(threadIdx.x % 2);
}

// Warps that meet in pairs at named barriers, and a partial block.
extern "C" __global__ void named_barriers(int* out) {
  __shared__ int box[128];
  int pair = threadIdx.x / 64;
  box[threadIdx.x] = threadIdx.x * 3;
  asm volatile("bar.sync %0, 64;" ::"r"(pair + 1));
  out[threadIdx.x] = box[threadIdx.x ^ 32];
  asm volatile("barrier.sync %0, %1;" ::"r"(5), "r"(128));
  box[threadIdx.x] = 1;
}

extern "C" __global__ void producer_consumer(int* out) {
  __shared__ int box[32];
  if (threadIdx.x < 32) {
    asm volatile("bar.sync 1, 64;");
    out[threadIdx.x] = box[31 - threadIdx.x];
  } else {
    box[threadIdx.x - 32] = threadIdx.x;
    asm volatile("bar.arrive 1, 64;");
  }
}

extern "C" __global__ void grid_sums(int* values, int* out, int rounds) {
  auto grid = cg::this_grid();
  int i = grid.thread_rank(), n = grid.size();
  for (int round = 0; round < rounds; ++round) {
    int next = values[(i + 1) % n];
    grid.sync();
    values[i] += next;
    grid.sync();
  }
  out[i] = values[i];
}
