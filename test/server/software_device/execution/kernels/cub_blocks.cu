// Whole algorithms from CUB, as a check of everything together.
#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

extern "C" __global__ void sort_block(int* keys, float* values) {
  using Sort = cub::BlockRadixSort<int, 128, 4, float>;
  __shared__ typename Sort::TempStorage storage;
  int key[4];
  float value[4];
  for (int i = 0; i < 4; ++i) key[i] = keys[threadIdx.x * 4 + i], value[i] = values[threadIdx.x * 4 + i];
  Sort(storage).Sort(key, value);
  for (int i = 0; i < 4; ++i) keys[threadIdx.x * 4 + i] = key[i], values[threadIdx.x * 4 + i] = value[i];
}

extern "C" __global__ void scan_block(int* values, long long* sum) {
  using Scan = cub::BlockScan<int, 96>;
  using Reduce = cub::BlockReduce<long long, 96>;
  __shared__ typename Scan::TempStorage scan;
  __shared__ typename Reduce::TempStorage reduce;
  int value = values[threadIdx.x];
  long long total = Reduce(reduce).Sum(static_cast<long long>(value) * value);
  Scan(scan).InclusiveSum(value, value);
  values[threadIdx.x] = value;
  if (threadIdx.x == 0) *sum = total;
}
