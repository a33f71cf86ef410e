// Kernels that launch kernels: quicksort by recursion, and a child whose results a tail launch reads.
#include <algorithm>

#include "../../support/cuda_check.hpp"

namespace {

constexpr int kCount = 5000, kSmall = 32, kDepthMax = 20;

__global__ void quicksort(int* data, int left, int right, int depth) {
  if (right - left <= kSmall || depth >= kDepthMax) {
    for (int i = left; i <= right; ++i) {
      int smallest = i;
      for (int j = i + 1; j <= right; ++j)
        if (data[j] < data[smallest]) smallest = j;
      const int value = data[i];
      data[i] = data[smallest];
      data[smallest] = value;
    }
    return;
  }
  int low = left, high = right;
  const int pivot = data[(left + right) / 2];
  while (low <= high) {
    while (data[low] < pivot) ++low;
    while (data[high] > pivot) --high;
    if (low > high) break;
    const int value = data[low];
    data[low++] = data[high];
    data[high--] = value;
  }
  if (left < high) quicksort<<<1, 1, 0, cudaStreamFireAndForget>>>(data, left, high, depth + 1);
  if (low < right) quicksort<<<1, 1, 0, cudaStreamFireAndForget>>>(data, low, right, depth + 1);
}

__global__ void square(int* values) { values[threadIdx.x] *= values[threadIdx.x]; }
__global__ void sum(const int* values, int count, int* out) {
  for (int i = 0; i < count; ++i) *out += values[i];
}
// A tail launch begins when this grid and all its children have ended.
__global__ void parent(int* values, int count, int* out) {
  if (threadIdx.x) return;
  square<<<1, count>>>(values);
  sum<<<1, 1, 0, cudaStreamTailLaunch>>>(values, count, out);
}

}  // namespace

int main() {
  check::Random random(1);
  std::vector<int> values;
  for (int i = 0; i < kCount; ++i) values.push_back(int(random.next() * 1e6f));
  check::Device<int> data(values);
  quicksort<<<1, 1>>>(data.get(), 0, kCount - 1, 0);
  CHECK_RUNTIME(cudaGetLastError());
  CHECK_RUNTIME(cudaDeviceSynchronize());
  std::sort(values.begin(), values.end());
  EXPECT(data.host() == values);

  std::vector<int> few(100);
  int expected = 0;
  for (int i = 0; i < 100; ++i) {
    few[i] = i;
    expected += i * i;
  }
  check::Device<int> device_few(few), total(std::vector<int>{0});
  parent<<<1, 32>>>(device_few.get(), 100, total.get());
  CHECK_RUNTIME(cudaGetLastError());
  CHECK_RUNTIME(cudaDeviceSynchronize());
  EXPECT(total.host()[0] == expected);
  std::printf("PASSED\n");
}
