// A host function waits until the program releases it, and the program does that only after a call for which the driver
// may wait for the function's stream. Over the wire most of these calls are posted, so the program always continues;
// the server must find the host function's answer behind the blocked call.
//
// usage: callbacks_busy [native]: with `native` the function is released before the calls for which NVIDIA's driver
// itself waits.
#include <cuda.h>
#include <cuda_runtime.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "../../../../examples/check.hpp"

static const char* kModule = ".version 8.0\n.target sm_50\n.address_size 64\n.visible .entry nothing() { ret; }\n";
static constexpr size_t kCopyBytes = size_t{24} << 20;
static constexpr int kCopies = 10;
static constexpr int kLaunches = 9000;

__global__ void add(unsigned* at, unsigned value) { *at += value; }
__global__ void add_from(unsigned* at, const unsigned* value) { *at += *value; }
__global__ void last(const unsigned* from, unsigned* to, size_t index) { *to = from[index]; }

static std::mutex mutex;
static std::condition_variable changed;
static bool may_go, ran;
static unsigned* mapped;  // the function writes it, the kernel behind the function reads it

static void CUDART_CB stand(void*) {
  std::unique_lock lock(mutex);
  changed.wait(lock, [] { return may_go; });
  ran = true;
  *mapped = 2;
}

static void let_go() {
  std::lock_guard lock(mutex);
  may_go = true;
  changed.notify_all();
}

struct World {
  cudaStream_t own, other;
  unsigned *counter, *big, *seen, *spare;
  void *pinned, *registered;
  CUmodule module;
  std::vector<unsigned> source;
};

static void check(CUresult result) {
  if (result != CUDA_SUCCESS) std::printf("driver error %d\n", result), std::exit(1);
}

// The implementations whose call returns only after the stream has continued.
enum class Waits { nobody, driver, everybody };

static bool stands(const char* name, World& world, bool native, Waits waits, const std::function<void()>& call) {
  may_go = ran = false;
  *mapped = 0;
  unsigned before = 0, after = 0;
  CHECK_RUNTIME(cudaMemcpy(&before, world.counter, sizeof before, cudaMemcpyDeviceToHost));
  add<<<1, 1, 0, world.own>>>(world.counter, 1);
  CHECK_RUNTIME(cudaLaunchHostFunc(world.own, stand, nullptr));
  unsigned* device_mapped;
  CHECK_RUNTIME(cudaHostGetDevicePointer(&device_mapped, mapped, 0));
  add_from<<<1, 1, 0, world.own>>>(world.counter, device_mapped);
  if (waits == Waits::everybody || (native && waits == Waits::driver)) let_go();
  call();
  let_go();
  CHECK_RUNTIME(cudaDeviceSynchronize());
  CHECK_RUNTIME(cudaMemcpy(&after, world.counter, sizeof after, cudaMemcpyDeviceToHost));
  bool right = ran && after == before + 3;
  std::printf("%s: %s\n", name, right ? "right" : "WRONG");
  std::fflush(stdout);
  return right;
}

int main(int argc, char** argv) {
  bool native = argc > 1 && std::strcmp(argv[1], "native") == 0;
  World world;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&world.own, cudaStreamNonBlocking));
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&world.other, cudaStreamNonBlocking));
  CHECK_RUNTIME(cudaMalloc(&world.counter, sizeof(unsigned)));
  CHECK_RUNTIME(cudaMalloc(&world.seen, sizeof(unsigned)));
  CHECK_RUNTIME(cudaMalloc(&world.spare, 4096));
  CHECK_RUNTIME(cudaMalloc(&world.big, kCopyBytes));
  CHECK_RUNTIME(cudaMemset(world.counter, 0, sizeof(unsigned)));
  CHECK_RUNTIME(cudaMallocHost(&world.pinned, 4096));
  world.registered = aligned_alloc(4096, 1 << 20);
  CHECK_RUNTIME(cudaHostRegister(world.registered, 1 << 20, cudaHostRegisterDefault));
  CHECK_RUNTIME(cudaHostAlloc(&mapped, sizeof *mapped, cudaHostAllocMapped));
  *mapped = 0;
  check(cuModuleLoadData(&world.module, kModule));
  world.source.resize(kCopyBytes / sizeof(unsigned));
  // Kernels are loaded now: the driver loads them at their first use, and waits for that.
  last<<<1, 1, 0, world.other>>>(world.big, world.seen, 0);
  add_from<<<1, 1, 0, world.other>>>(world.counter, mapped);
  add<<<1, 1, 0, world.other>>>(world.seen, 0);
  CHECK_RUNTIME(cudaDeviceSynchronize());

  bool right = true;
  auto test = [&](const char* name, Waits waits, const std::function<void()>& call) {
    right &= stands(name, world, native, waits, call);
  };
  test("a stream is made", Waits::nobody, [] {
    cudaStream_t made;
    CHECK_RUNTIME(cudaStreamCreate(&made));
  });
  test("an event is made and recorded", Waits::nobody, [&] {
    cudaEvent_t made;
    CHECK_RUNTIME(cudaEventCreate(&made));
    CHECK_RUNTIME(cudaEventRecord(made, world.own));
  });
  test("memory is allocated", Waits::nobody, [] {
    void* made;
    CHECK_RUNTIME(cudaMalloc(&made, 1 << 20));
    CHECK_RUNTIME(cudaMallocHost(&made, 1 << 20));
  });
  test("another stream is used", Waits::nobody, [&] {
    add<<<1, 1, 0, world.other>>>(world.seen, 1);
    CHECK_RUNTIME(cudaStreamSynchronize(world.other));
  });
  test("a module is unloaded", Waits::driver, [&] { check(cuModuleUnload(world.module)); });
  test("device memory is freed", Waits::everybody, [&] { CHECK_RUNTIME(cudaFree(world.spare)); });
  test("pinned memory is freed", Waits::everybody, [&] { CHECK_RUNTIME(cudaFreeHost(world.pinned)); });
  test("memory is unregistered", Waits::everybody, [&] { CHECK_RUNTIME(cudaHostUnregister(world.registered)); });
  test("more launches than a stream takes", Waits::driver, [&] {
    for (int i = 0; i < kLaunches; ++i) add<<<1, 1, 0, world.own>>>(world.seen, 1);
    CHECK_RUNTIME(cudaGetLastError());
  });
  auto copy = [&] {
    for (int i = 0; i < kCopies; ++i) {
      world.source.back() = unsigned(i + 1);
      CHECK_RUNTIME(cudaMemcpyAsync(world.big, world.source.data(), kCopyBytes, cudaMemcpyHostToDevice, world.own));
    }
    last<<<1, 1, 0, world.own>>>(world.big, world.seen, world.source.size() - 1);
  };
  test("hundreds of megabytes are copied", Waits::driver, copy);
  test("another thread copies behind more launches than a stream takes", Waits::driver, [&] {
    for (int i = 0; i < kLaunches; ++i) add<<<1, 1, 0, world.own>>>(world.seen, 1);
    std::atomic<bool> copying{false};
    std::thread thread([&] {
      copying = true;
      copy();
    });
    while (!copying) std::this_thread::yield();
    // From here on the thread waits for copies after the launches.
    let_go();
    thread.join();
  });
  unsigned seen = 0;
  CHECK_RUNTIME(cudaMemcpy(&seen, world.seen, sizeof seen, cudaMemcpyDeviceToHost));
  right &= seen == kCopies;
  std::printf("%s\n", right ? "PASSED" : "FAILED");
  return right ? 0 : 1;
}
