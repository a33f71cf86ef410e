// Memory is freed while a stream waits in a host function with a second one queued: the free may wait for both, and
// neither waits for the free.
#include <atomic>
#include <thread>

#include "../driver_check.hpp"

namespace {

std::atomic<bool> g_first_may_end{false};  // partner: first()
std::atomic<int> g_ran{0};

void CUDA_CB first(void*) {
  while (!g_first_may_end.load(std::memory_order_acquire)) std::this_thread::yield();
  ++g_ran;
}

void CUDA_CB second(void*) { ++g_ran; }

}  // namespace

int main() {
  retain_primary();
  CUstream stream;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr memory;
  OK(cuMemAlloc(&memory, 4096));
  OK(cuLaunchHostFunc(stream, first, nullptr));
  // By another thread, since the driver's own call waits for the stream.
  std::atomic<bool> frees{false};
  std::thread freeing([&] {
    CUcontext context;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    frees.store(true, std::memory_order_release);
    OK(cuMemFree(memory));
  });
  while (!frees.load(std::memory_order_acquire)) std::this_thread::yield();
  OK(cuLaunchHostFunc(stream, second, nullptr));
  CUevent event;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuEventQuery(event));  // the server's answer: it has received the earlier frames
  g_first_may_end.store(true, std::memory_order_release);
  OK(cuStreamSynchronize(stream));
  freeing.join();
  DEMAND(g_ran == 2);
  std::printf("PASSED\n");
  return 0;
}
