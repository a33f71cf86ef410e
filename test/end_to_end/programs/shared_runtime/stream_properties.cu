// Streams: priorities, flags, ids, devices; work on streams of all priorities is right.
#include <set>

#include "../../../support/cuda_check.hpp"

namespace {

constexpr unsigned kCount = 1000;

__global__ void add(unsigned* data, unsigned value) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kCount) data[i] += value;
}

}  // namespace

int main() {
  int least = 1, greatest = 1;
  CHECK_RUNTIME(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  EXPECT(least == 0 && greatest <= 0);
  std::set<unsigned long long> ids;
  for (int priority = least; priority >= greatest; --priority) {
    for (const unsigned flags : {cudaStreamDefault, cudaStreamNonBlocking}) {
      cudaStream_t stream;
      CHECK_RUNTIME(cudaStreamCreateWithPriority(&stream, flags, priority));
      int got_priority = 1, device = -1;
      unsigned got_flags = 9;
      unsigned long long id = 0;
      CHECK_RUNTIME(cudaStreamGetPriority(stream, &got_priority));
      CHECK_RUNTIME(cudaStreamGetFlags(stream, &got_flags));
      CHECK_RUNTIME(cudaStreamGetId(stream, &id));
      CHECK_RUNTIME(cudaStreamGetDevice(stream, &device));
      EXPECT(got_priority == priority && got_flags == flags && device == 0);
      EXPECT(ids.insert(id).second);
      check::Device<unsigned> data(std::vector<unsigned>(kCount, 1));
      CHECK_RUNTIME(cudaDeviceSynchronize());
      for (int i = 0; i < 10; ++i) add<<<8, 128, 0, stream>>>(data.get(), 2);
      CHECK_RUNTIME(cudaStreamSynchronize(stream));
      for (unsigned value : data.host()) EXPECT(value == 21);
      CHECK_RUNTIME(cudaStreamDestroy(stream));
    }
  }
  cudaStream_t clamped;
  CHECK_RUNTIME(cudaStreamCreateWithPriority(&clamped, cudaStreamNonBlocking, greatest - 100));
  int priority = 1;
  CHECK_RUNTIME(cudaStreamGetPriority(clamped, &priority));
  EXPECT(priority == greatest);
  CHECK_RUNTIME(cudaStreamDestroy(clamped));
  std::printf("PASSED\n");
  return 0;
}
