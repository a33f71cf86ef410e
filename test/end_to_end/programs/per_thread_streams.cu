// Built with --default-stream per-thread: each thread's default stream is its own, does not wait for the others', and
// is waited for by its own calls.
#include <thread>

#include <unistd.h>

#include "../../support/cuda_check.hpp"

namespace {

constexpr unsigned kCount = 4096, kThreads = 8, kRounds = 50;

__global__ void add(unsigned* data, unsigned value) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kCount) data[i] += value;
}

// A host function blocks the first thread's stream until all others have finished on theirs, which would deadlock with
// one common stream.
struct Gate {
  int pipe[2];
};

void wait_at(void* user) {
  char open;
  EXPECT(read(static_cast<Gate*>(user)->pipe[0], &open, 1) == 1);
}

// Memory is allocated before and freed after the threads, because a free waits for the whole device.
void thread(unsigned* data, unsigned number) {
  for (unsigned round = 0; round < kRounds; ++round) add<<<kCount / 256, 256>>>(data, round);
  CHECK_RUNTIME(cudaGetLastError());
  std::vector<unsigned> host(kCount);
  CHECK_RUNTIME(
      cudaMemcpyAsync(host.data(), data, kCount * sizeof(unsigned), cudaMemcpyDeviceToHost, cudaStreamPerThread));
  CHECK_RUNTIME(cudaStreamSynchronize(nullptr));  // this thread's own
  for (unsigned value : host) EXPECT(value == number + kRounds * (kRounds - 1) / 2);
}

}  // namespace

int main() {
  check::Device<unsigned> held(std::vector<unsigned>(kCount, 0));
  std::vector<unsigned> numbers(kThreads * kCount);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = unsigned(i / kCount);
  check::Device<unsigned> data(numbers);
  add<<<kCount / 256, 256>>>(held.get(), 0);  // loads the kernel
  CHECK_RUNTIME(cudaDeviceSynchronize());
  Gate gate;
  EXPECT(pipe(gate.pipe) == 0);
  CHECK_RUNTIME(cudaLaunchHostFunc(nullptr, wait_at, &gate));
  add<<<kCount / 256, 256>>>(held.get(), 7);
  EXPECT(cudaStreamQuery(nullptr) == cudaErrorNotReady);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i) threads.emplace_back(thread, data.get() + i * kCount, i);
  for (auto& each : threads) each.join();
  EXPECT(cudaStreamQuery(nullptr) == cudaErrorNotReady);
  EXPECT(write(gate.pipe[1], "o", 1) == 1);
  CHECK_RUNTIME(cudaStreamSynchronize(nullptr));
  for (unsigned value : held.host()) EXPECT(value == 7);
  std::printf("PASSED\n");
}
