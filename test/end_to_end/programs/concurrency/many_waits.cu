// More threads than the server's waiters wait for streams that are blocked by a host function, and others for the
// device; the function is released only after calls that are made while all of them wait.
#include <cuda_runtime.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>
#include <vector>

#include "../../../../examples/check.hpp"

static constexpr int kStreamWaits = 150, kDeviceWaits = 40, kEventWaits = 30;
static constexpr int kRoundTrips = 200;  // by then the waits of the other threads have reached the device, too

static std::mutex mutex;
static std::condition_variable changed;
static bool may_go;

static void CUDART_CB stand(void*) {
  std::unique_lock lock(mutex);
  changed.wait(lock, [] { return may_go; });
}

__global__ void add(unsigned* at) { atomicAdd(at, 1); }

// Prints the progress, so that a hanging run shows its place.
static void tell(const char* reached) {
  std::printf("%s\n", reached);
  std::fflush(stdout);
}

int main() {
  cudaStream_t first;
  cudaEvent_t gone;
  unsigned *counter, seen = 0;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  CHECK_RUNTIME(cudaEventCreateWithFlags(&gone, cudaEventDisableTiming));
  CHECK_RUNTIME(cudaMalloc(&counter, sizeof *counter));
  CHECK_RUNTIME(cudaMemset(counter, 0, sizeof *counter));
  std::vector<cudaStream_t> streams(kStreamWaits);
  for (cudaStream_t& stream : streams) CHECK_RUNTIME(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  // The first launch loads the kernel, which waits for the device.
  add<<<1, 1>>>(counter);
  CHECK_RUNTIME(cudaMemset(counter, 0, sizeof *counter));
  CHECK_RUNTIME(cudaDeviceSynchronize());

  CHECK_RUNTIME(cudaLaunchHostFunc(first, stand, nullptr));
  CHECK_RUNTIME(cudaEventRecord(gone, first));
  std::atomic<int> waiting{0}, returned{0};
  std::vector<std::thread> threads;
  auto start = [&](auto wait) {
    threads.emplace_back([&, wait] {
      ++waiting;
      CHECK_RUNTIME(wait());
      ++returned;
    });
  };
  for (cudaStream_t stream : streams) {
    CHECK_RUNTIME(cudaStreamWaitEvent(stream, gone, 0));
    add<<<1, 1, 0, stream>>>(counter);
    start([stream] { return cudaStreamSynchronize(stream); });
  }
  for (int i = 0; i < kEventWaits; ++i) start([gone] { return cudaEventSynchronize(gone); });
  for (int i = 0; i < kDeviceWaits; ++i) start([] { return cudaDeviceSynchronize(); });
  while (waiting != kStreamWaits + kEventWaits + kDeviceWaits) std::this_thread::yield();
  tell("all wait");
  for (int i = 0; i < kRoundTrips; ++i) {
    void* memory;
    CHECK_RUNTIME(cudaMalloc(&memory, 4096));
    CHECK_RUNTIME(cudaStreamQuery(first) == cudaErrorNotReady ? cudaSuccess : cudaErrorUnknown);
  }
  tell("calls went on");
  bool early = returned != 0;
  {
    std::lock_guard lock(mutex);
    may_go = true;
    changed.notify_all();
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_RUNTIME(cudaMemcpy(&seen, counter, sizeof seen, cudaMemcpyDeviceToHost));
  bool right = !early && seen == kStreamWaits;
  std::printf("%d waits, %u kernels behind them\n%s\n", returned.load(), seen, right ? "PASSED" : "FAILED");
  return !right;
}
