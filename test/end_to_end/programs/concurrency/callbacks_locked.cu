// Host functions that need a lock of the program, like functions of an interpreter: threads release it around calls
// that block natively, and hold it in other calls. Six threads copy, run host functions and wait in streams of their
// own; meanwhile the main thread computes, makes and ends objects, and queries. The program must end, with each
// function called once, in stream order, after its data. Natively it deadlocks: the driver blocks the thread that makes
// objects while a function waits.
#include <cuda.h>
#include <cuda_runtime.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../../../../examples/check.hpp"

static constexpr int kThreads = 6, kRounds = 24, kRoundsBetweenWaits = 8, kCount = 50000;

__global__ void add(float* at, int count, float value) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) at[i] += value;
}

static std::mutex interpreter;

// Makes a call that may block, without the lock.
template <class Call>
static void without_lock(Call call) {
  interpreter.unlock();
  call();
  interpreter.lock();
}

static std::string module_text(int number) {
  return ".version 8.0\n.target sm_50\n.address_size 64\n.visible .entry nothing_" + std::to_string(number) +
         "() { ret; }\n";
}

struct Worker;
struct Called {
  Worker* worker;
  int round;
};

struct Worker {
  int number = 0;
  float* pinned = nullptr;
  std::vector<Called> called;
  std::vector<int> seen;
  bool right = true;

  static void CUDART_CB function(void* at) {
    auto* call = static_cast<Called*>(at);
    std::lock_guard lock(interpreter);
    Worker& worker = *call->worker;
    const float want = float((worker.number + 1) * (call->round + 1));
    worker.right &= worker.pinned[0] == want && worker.pinned[kCount - 1] == want;
    worker.seen.push_back(call->round);
  }

  void run() {
    std::lock_guard lock(interpreter);
    cudaStream_t stream;
    float* device = nullptr;
    CUmodule module = nullptr;
    CUfunction nothing = nullptr;
    for (int round = 0; round < kRounds; ++round) called.push_back({this, round});
    CHECK_RUNTIME(cudaSetDevice(0));
    CHECK_RUNTIME(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    without_lock([&] {
      CHECK_RUNTIME(cudaMallocHost(&pinned, kCount * sizeof *pinned));
      CHECK_RUNTIME(cudaMalloc(&device, kCount * sizeof *device));
      CHECK_RUNTIME(cudaMemsetAsync(device, 0, kCount * sizeof *device, stream));
    });
    for (int round = 0; round < kRounds; ++round) {
      without_lock([&] {
        add<<<8, 128, 0, stream>>>(device, kCount, float(number + 1));
        CHECK_RUNTIME(cudaMemcpyAsync(pinned, device, kCount * sizeof *pinned, cudaMemcpyDeviceToHost, stream));
        CHECK_RUNTIME(cudaLaunchHostFunc(stream, function, &called[size_t(round)]));
      });
      // Each thread loads a module of its own while functions wait.
      if (round == 1 + number % 3) {
        without_lock([&] {
          if (cuModuleLoadData(&module, module_text(number).c_str()) != CUDA_SUCCESS ||
              cuModuleGetFunction(&nothing, module, ("nothing_" + std::to_string(number)).c_str()) != CUDA_SUCCESS)
            right = false;
        });
      }
      if (nothing) {
        without_lock(
            [&] { right &= cuLaunchKernel(nothing, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr) == CUDA_SUCCESS; });
      }
      if (round % kRoundsBetweenWaits == kRoundsBetweenWaits - 1)
        without_lock([&] { CHECK_RUNTIME(cudaStreamSynchronize(stream)); });
    }
    without_lock([&] { CHECK_RUNTIME(cudaStreamSynchronize(stream)); });
    CHECK_RUNTIME(cudaStreamDestroy(stream));
    for (int round = 0; round < kRounds; ++round) right &= size_t(round) < seen.size() && seen[size_t(round)] == round;
    right &= seen.size() == size_t(kRounds);
  }
};

int main() {
  std::vector<Worker> workers(kThreads);
  std::vector<std::thread> threads;
  std::atomic<int> over{0};
  cudaStream_t own;
  float* device = nullptr;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
  CHECK_RUNTIME(cudaMalloc(&device, sizeof *device));
  // The driver loads a kernel at its first launch, and may wait for streams then.
  CHECK_RUNTIME(cudaMemsetAsync(device, 0, sizeof *device, own));
  add<<<1, 1, 0, own>>>(device, 1, 0);
  CHECK_RUNTIME(cudaStreamSynchronize(own));
  for (int i = 0; i < kThreads; ++i) {
    workers[size_t(i)].number = i;
    threads.emplace_back([&, i] {
      workers[size_t(i)].run();
      ++over;
    });
  }
  bool right = true;
  int turns = 0;
  for (; turns == 0 || over != kThreads; ++turns) {
    std::lock_guard lock(interpreter);
    float got = 0;
    cudaEvent_t done;
    cudaStream_t made;
    int current = -1;
    cudaStreamCaptureStatus capturing;
    cudaPointerAttributes attributes;
    CHECK_RUNTIME(cudaGetDevice(&current));
    CHECK_RUNTIME(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    CHECK_RUNTIME(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
    CHECK_RUNTIME(cudaStreamIsCapturing(own, &capturing));
    CHECK_RUNTIME(cudaPointerGetAttributes(&attributes, device));
    CHECK_RUNTIME(cudaMemsetAsync(device, 0, sizeof *device, own));
    add<<<1, 1, 0, own>>>(device, 1, float(turns));
    CHECK_RUNTIME(cudaEventRecord(done, own));
    CHECK_RUNTIME(cudaStreamWaitEvent(made, done, 0));
    for (const cudaError_t asked : {cudaEventQuery(done), cudaStreamQuery(own)})
      right &= asked == cudaSuccess || asked == cudaErrorNotReady;
    static_cast<void>(cudaGetLastError());
    without_lock([&] {
      CHECK_RUNTIME(cudaMemcpyAsync(&got, device, sizeof got, cudaMemcpyDeviceToHost, own));
      CHECK_RUNTIME(cudaStreamSynchronize(own));
    });
    right &= got == float(turns) && current == 0;
    CHECK_RUNTIME(cudaEventDestroy(done));
    CHECK_RUNTIME(cudaStreamDestroy(made));
  }
  for (std::thread& thread : threads) thread.join();
  for (const Worker& worker : workers) {
    if (!worker.right) std::printf("thread %d: WRONG\n", worker.number);
    right &= worker.right;
  }
  std::printf("%s\n", right ? "PASSED" : "FAILED");
  return right ? 0 : 1;
}
