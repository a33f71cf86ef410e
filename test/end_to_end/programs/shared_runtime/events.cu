// Events: timing, order between streams, states, and the errors of events without times.
#include "../../../support/cuda_check.hpp"

namespace {

__global__ void work(unsigned* data, unsigned rounds) {
  unsigned value = data[threadIdx.x];
  for (unsigned i = 0; i < rounds; ++i) value = value * 1664525u + 1013904223u;
  data[threadIdx.x] = value;
}

unsigned expected(unsigned value, unsigned rounds) {
  for (unsigned i = 0; i < rounds; ++i) value = value * 1664525u + 1013904223u;
  return value;
}

void timing(cudaStream_t stream, unsigned* data) {
  cudaEvent_t begin, middle, end;
  for (cudaEvent_t* event : {&begin, &middle, &end}) CHECK_RUNTIME(cudaEventCreate(event));
  float ms = -1;
  EXPECT(cudaEventElapsedTime(&ms, begin, end) == cudaErrorInvalidResourceHandle);  // never recorded
  static_cast<void>(cudaGetLastError());
  work<<<1, 32, 0, stream>>>(data, 1);  // loads the kernel, which is not to be timed
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  CHECK_RUNTIME(cudaEventRecord(begin, stream));
  work<<<1, 32, 0, stream>>>(data, 1000);
  CHECK_RUNTIME(cudaEventRecord(middle, stream));
  work<<<1, 32, 0, stream>>>(data, 20000);
  CHECK_RUNTIME(cudaEventRecord(end, stream));
  CHECK_RUNTIME(cudaEventSynchronize(end));
  EXPECT(cudaEventQuery(begin) == cudaSuccess && cudaEventQuery(middle) == cudaSuccess &&
         cudaEventQuery(end) == cudaSuccess);
  float first = -1, second = -1, both = -1;
  CHECK_RUNTIME(cudaEventElapsedTime(&first, begin, middle));
  CHECK_RUNTIME(cudaEventElapsedTime(&second, middle, end));
  CHECK_RUNTIME(cudaEventElapsedTime(&both, begin, end));
  EXPECT(first > 0 && second > 0 && both > 0);
  EXPECT(std::fabs(both - first - second) < 0.01f);
  for (cudaEvent_t event : {begin, middle, end}) CHECK_RUNTIME(cudaEventDestroy(event));
}

void without_timing(cudaStream_t stream) {
  cudaEvent_t quiet, timed;
  CHECK_RUNTIME(cudaEventCreateWithFlags(&quiet, cudaEventDisableTiming | cudaEventBlockingSync));
  CHECK_RUNTIME(cudaEventCreate(&timed));
  CHECK_RUNTIME(cudaEventRecord(quiet, stream));
  CHECK_RUNTIME(cudaEventRecordWithFlags(timed, stream, cudaEventRecordDefault));
  CHECK_RUNTIME(cudaEventSynchronize(timed));
  CHECK_RUNTIME(cudaEventSynchronize(quiet));
  float ms = 0;
  EXPECT(cudaEventElapsedTime(&ms, quiet, timed) == cudaErrorInvalidResourceHandle);
  static_cast<void>(cudaGetLastError());
  CHECK_RUNTIME(cudaEventDestroy(quiet));
  CHECK_RUNTIME(cudaEventDestroy(timed));
}

// A chain of work between two streams, with a new record of an event each time.
void order(cudaStream_t first, cudaStream_t second, unsigned* data) {
  const std::vector<unsigned> start(32, 1);
  CHECK_RUNTIME(cudaMemcpy(data, start.data(), 32 * sizeof(unsigned), cudaMemcpyHostToDevice));
  CHECK_RUNTIME(cudaDeviceSynchronize());  // the streams do not wait for the NULL stream
  cudaEvent_t event;
  CHECK_RUNTIME(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  for (int i = 0; i < 50; ++i) {
    cudaStream_t here = i % 2 ? second : first, there = i % 2 ? first : second;
    work<<<1, 32, 0, here>>>(data, 100);
    CHECK_RUNTIME(cudaEventRecord(event, here));
    CHECK_RUNTIME(cudaStreamWaitEvent(there, event, 0));
  }
  CHECK_RUNTIME(cudaEventDestroy(event));  // with waits still pending on it
  std::vector<unsigned> host(32);
  CHECK_RUNTIME(cudaMemcpyAsync(host.data(), data, 32 * sizeof(unsigned), cudaMemcpyDeviceToHost, first));
  CHECK_RUNTIME(cudaStreamSynchronize(first));
  for (unsigned value : host) EXPECT(value == expected(1, 5000));
}

}  // namespace

int main() {
  cudaStream_t first, second;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  check::Device<unsigned> data(std::vector<unsigned>(32, 1));
  timing(first, data.get());
  without_timing(first);
  order(first, second, data.get());
  CHECK_RUNTIME(cudaStreamDestroy(first));
  CHECK_RUNTIME(cudaStreamDestroy(second));
  std::printf("PASSED\n");
  return 0;
}
