// Threads retain the primary context, use it and release it, each at its own pace: each holder has a working context,
// with memory of its own.
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "../driver_check.hpp"

static constexpr unsigned kSeed = 20261128;
static constexpr int kThreads = 6, kRounds = 40, kBytes = 4096;

static std::atomic<int> wrong{0};

static void expect(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::printf("%s: %s\n", what, error_name(result));
  ++wrong;
}

static void use(int thread) {
  std::minstd_rand random(kSeed + unsigned(thread));
  for (int round = 0; round < kRounds && wrong == 0; ++round) {
    CUcontext context = nullptr;
    CUdeviceptr memory = 0;
    std::vector<unsigned char> bytes(kBytes);
    const auto value = static_cast<unsigned char>(random());
    expect(cuDevicePrimaryCtxRetain(&context, 0), "retaining");
    expect(cuCtxSetCurrent(context), "making it current");
    expect(cuMemAlloc(&memory, kBytes), "allocating");
    expect(cuMemsetD8(memory, value, kBytes), "filling");
    for (auto times = random() % 8; times > 0; --times) std::this_thread::yield();
    expect(cuMemcpyDtoH(bytes.data(), memory, kBytes), "copying");
    expect(cuMemFree(memory), "freeing");
    expect(cuDevicePrimaryCtxRelease(0), "releasing");
    if (bytes != std::vector<unsigned char>(kBytes, value)) {
      std::printf("other bytes than were written\n");
      ++wrong;
    }
  }
}

int main() {
  std::printf("seed %u\n", kSeed);
  OK(cuInit(0));
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) threads.emplace_back(use, thread);
  for (std::thread& thread : threads) thread.join();
  unsigned flags = 0;
  int active = 1;
  OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  if (active) std::printf("the context is active still\n");
  std::printf("%s\n", wrong == 0 && !active ? "PASSED" : "FAILED");
  return wrong == 0 && !active ? 0 : 1;
}
