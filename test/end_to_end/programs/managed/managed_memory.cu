// Managed memory, written and read by both sides in all usual ways: each part's name is printed when it is right.
#include <cuda.h>
#include <cuda_runtime.h>

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "../../../support/cuda_check.hpp"

__managed__ int counter = 42;
__managed__ float table[1000] = {1.5f, 2.5f};
__managed__ int* list = nullptr;

struct Node {
  int value;
  Node* next;
};

__global__ void add(int* values, int count, int amount) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] += amount;
}
// The device writes every second byte only.
__global__ void mark_odd(unsigned char* bytes, int count, unsigned char value) {
  int i = 2 * (blockIdx.x * blockDim.x + threadIdx.x) + 1;
  if (i < count) bytes[i] = value;
}
__global__ void sum_list(const Node* node, int* sum) {
  *sum = 0;
  for (; node; node = node->next) *sum += node->value;
}
__global__ void use_variables() {
  counter += int(table[0] + table[1]);
  table[999] = float(counter);
  if (list) list[1] = list[0] + 1;
}
// Waits for the host without any call of CUDA's, and answers it.
__global__ void answer(volatile int* question, volatile int* reply) {
  for (long i = 0; i < (1L << 40) && *question == 0; ++i) {}
  *reply = *question + 1;
  __threadfence_system();
}

namespace {

constexpr int kThreads = 128;
int blocks(int count) { return (count + kThreads - 1) / kThreads; }

template <class T>
T* managed(size_t count) {
  T* memory = nullptr;
  CHECK_RUNTIME(cudaMallocManaged(&memory, count * sizeof(T)));
  return memory;
}

// Allocates zeroed memory, because reused memory keeps its contents.
template <class T>
T* zeroed(size_t count) {
  T* memory = managed<T>(count);
  CHECK_RUNTIME(cudaMemset(memory, 0, count * sizeof(T)));
  CHECK_RUNTIME(cudaDeviceSynchronize());
  return memory;
}

void both_sides_in_turns(int count) {
  int* values = zeroed<int>(count);
  std::vector<int> expected(count);
  for (int round = 0; round < 5; ++round) {
    // All of it, some of it, nothing.
    for (int i = 0; round % 3 != 2 && i < count; i += round % 3 == 0 ? 1 : 777) expected[i] = values[i] = i * 3 + round;
    add<<<blocks(count), kThreads>>>(values, count, round + 1);
    if (round % 2) add<<<blocks(count), kThreads>>>(values, count, 10);
    for (int& value : expected) value += round + 1 + (round % 2 ? 10 : 0);
    CHECK_RUNTIME(cudaDeviceSynchronize());
    if (round == 3) continue;  // the host does not read the device's results before the next round
    for (int i = 0; i < count; ++i) EXPECT(values[i] == expected[i]);
  }
  CHECK_RUNTIME(cudaFree(values));
}

void bytes_of_one_page() {
  constexpr int kCount = 10000;
  auto* bytes = managed<unsigned char>(kCount);
  for (int round = 1; round < 4; ++round) {
    for (int i = 0; i < kCount; i += 2) bytes[i] = (unsigned char)(round);
    mark_odd<<<blocks(kCount), kThreads>>>(bytes, kCount, (unsigned char)(100 + round));
    CHECK_RUNTIME(cudaDeviceSynchronize());
    for (int i = 0; i < kCount; ++i) EXPECT(bytes[i] == (i % 2 ? 100 + round : round));
  }
  CHECK_RUNTIME(cudaFree(bytes));
}

void linked_list() {
  Node* first = nullptr;
  int expected = 0;
  for (int i = 0; i < 1000; ++i) {
    Node* node = managed<Node>(1);
    *node = {i, first};
    first = node;
    expected += i;
  }
  int* sum = managed<int>(1);
  sum_list<<<1, 1>>>(first, sum);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  EXPECT(*sum == expected);
  first->value += 5;
  sum_list<<<1, 1>>>(first, sum);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  EXPECT(*sum == expected + 5);
  while (first) {
    Node* next = first->next;
    CHECK_RUNTIME(cudaFree(first));
    first = next;
  }
  CHECK_RUNTIME(cudaFree(sum));
}

// A structure in managed memory whose pointer the driver itself sets, and a launch's parameters in managed memory.
void pointers_inside() {
  struct Holder {
    int* values;
    int count, amount;
    cudaStream_t stream;
  };
  Holder* holder = managed<Holder>(1);
  holder->count = 5000;
  holder->amount = 9;
  CHECK_RUNTIME(cudaMallocManaged(&holder->values, 5000 * sizeof(int)));
  std::memset(holder->values, 0, 5000 * sizeof(int));
  CHECK_RUNTIME(cudaStreamCreate(&holder->stream));
  for (int round = 0; round < 3; ++round) {
    void* arguments[] = {&holder->values, &holder->count, &holder->amount};
    CHECK_RUNTIME(
        cudaLaunchKernel((void*)add, dim3(blocks(holder->count)), dim3(kThreads), arguments, 0, holder->stream));
    CHECK_RUNTIME(cudaStreamSynchronize(holder->stream));
    EXPECT(holder->values[0] == 9 * (round + 1) && holder->values[4999] == 9 * (round + 1));
  }
  // Results of calls, while the device owns the memory.
  size_t* sizes = managed<size_t>(2);
  add<<<1, 1>>>((int*)sizes, 1, 0);
  CHECK_RUNTIME(cudaMemGetInfo(&sizes[0], &sizes[1]));
  EXPECT(sizes[1] > 0 && sizes[0] <= sizes[1]);
  CHECK_RUNTIME(cudaStreamDestroy(holder->stream));
  CHECK_RUNTIME(cudaFree(holder->values));
  CHECK_RUNTIME(cudaFree(holder));
  CHECK_RUNTIME(cudaFree(sizes));
}

void variables() {
  EXPECT(counter == 42 && table[1] == 2.5f);
  list = managed<int>(2);
  list[0] = 7;
  use_variables<<<1, 1>>>();
  CHECK_RUNTIME(cudaDeviceSynchronize());
  EXPECT(counter == 46 && table[999] == 46.0f && list[1] == 8);
  counter = 100;
  table[0] = 10;
  use_variables<<<1, 1>>>();
  CHECK_RUNTIME(cudaDeviceSynchronize());
  EXPECT(counter == 112 && table[999] == 112.0f);
  int copied = 0;
  CHECK_RUNTIME(cudaMemcpyFromSymbol(&copied, counter, sizeof copied));
  EXPECT(copied == 112);
  copied = 5;
  CHECK_RUNTIME(cudaMemcpyToSymbol(counter, &copied, sizeof copied));
  EXPECT(counter == 5);
  cudaPointerAttributes attributes;
  CHECK_RUNTIME(cudaPointerGetAttributes(&attributes, &counter));
  EXPECT(attributes.type == cudaMemoryTypeManaged && attributes.hostPointer == &counter &&
         attributes.devicePointer == &counter);
  CHECK_RUNTIME(cudaFree(list));
}

void copies_and_fills() {
  constexpr int kCount = 50000;
  constexpr size_t kBytes = kCount * sizeof(int);
  int *a = managed<int>(kCount), *b = managed<int>(kCount), *device = nullptr, *pinned = nullptr;
  std::vector<int> host(kCount);
  CHECK_RUNTIME(cudaMalloc(&device, kBytes));
  CHECK_RUNTIME(cudaMallocHost(&pinned, kBytes));
  auto all = [&](const int* values, int value) {
    for (int i = 0; i < kCount; ++i) EXPECT(values[i] == value + i);
  };
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < kCount; ++i) a[i] = i + round;
    CHECK_RUNTIME(cudaMemcpy(b, a, kBytes, cudaMemcpyDefault));
    a[0] = -1;  // after a copy that has ended
    all(b, round);
    a[0] = round;
    CHECK_RUNTIME(cudaMemcpy(device, a, kBytes, cudaMemcpyHostToDevice));
    for (int i = 0; i < kCount; ++i) a[i] = 0;
    CHECK_RUNTIME(cudaMemcpy(a, device, kBytes, cudaMemcpyDeviceToHost));
    all(a, round);
    CHECK_RUNTIME(cudaMemcpy(host.data(), a, kBytes, cudaMemcpyHostToHost));
    all(host.data(), round);
    for (int i = 0; i < kCount; ++i) host[i] += 5;
    CHECK_RUNTIME(cudaMemcpy(a, host.data(), kBytes, cudaMemcpyHostToDevice));
    all(a, round + 5);
    CHECK_RUNTIME(cudaMemcpy(b, host.data(), kBytes, cudaMemcpyHostToHost));
    all(b, round + 5);
    CHECK_RUNTIME(cudaMemcpyAsync(pinned, b, kBytes, cudaMemcpyDefault, nullptr));
    CHECK_RUNTIME(cudaStreamSynchronize(nullptr));
    all(pinned, round + 5);
    CHECK_RUNTIME(cudaMemcpy2D(a, 400, b, 200, 200, 250, cudaMemcpyHostToHost));
    EXPECT(a[100] == b[50] && a[149] == b[99] && a[50] == round + 5 + 50);
    CHECK_RUNTIME(cudaMemset(a, 0x11, kBytes));
    CHECK_RUNTIME(cudaDeviceSynchronize());
    EXPECT(a[0] == 0x11111111 && a[kCount - 1] == 0x11111111);
    b[3] = 3;
    CHECK_RUNTIME(cudaMemsetAsync(b + 1, 0, 8, nullptr));
    CHECK_RUNTIME(cudaDeviceSynchronize());
    EXPECT(b[0] == round + 5 && b[1] == 0 && b[2] == 0 && b[3] == 3);
  }
  cudaArray_t array;
  cudaChannelFormatDesc format = cudaCreateChannelDesc<int>();
  if (cudaMallocArray(&array, &format, 64, 8) == cudaSuccess) {  // the device has arrays
    for (int i = 0; i < 512; ++i) a[i] = i;
    CHECK_RUNTIME(cudaMemcpy2DToArray(array, 0, 0, a, 256, 256, 8, cudaMemcpyHostToDevice));
    CHECK_RUNTIME(cudaMemcpy2DFromArray(b, 256, array, 0, 0, 256, 8, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 512; ++i) EXPECT(b[i] == i);
    CHECK_RUNTIME(cudaFreeArray(array));
  }
  cudaGetLastError();
  CHECK_RUNTIME(cudaFree(a));
  CHECK_RUNTIME(cudaFree(b));
  CHECK_RUNTIME(cudaFree(device));
  CHECK_RUNTIME(cudaFreeHost(pinned));
}

void advice_and_prefetching() {
  constexpr int kCount = 1 << 20;
  constexpr size_t kBytes = kCount * sizeof(int);
  int* values = managed<int>(kCount);
  cudaMemLocation device{cudaMemLocationTypeDevice, 0}, host{cudaMemLocationTypeHost, 0};
  CHECK_RUNTIME(cudaMemAdvise(values, kBytes, cudaMemAdviseSetReadMostly, device));
  CHECK_RUNTIME(cudaMemAdvise(values, kBytes, cudaMemAdviseUnsetReadMostly, device));
  CHECK_RUNTIME(cudaMemAdvise(values, kBytes, cudaMemAdviseSetPreferredLocation, device));
  CHECK_RUNTIME(cudaMemAdvise(values, kBytes, cudaMemAdviseSetAccessedBy, host));
  for (int i = 0; i < kCount; ++i) values[i] = i;
  CHECK_RUNTIME(cudaMemPrefetchAsync(values, kBytes, device, 0, nullptr));
  add<<<blocks(kCount), kThreads>>>(values, kCount, 1);
  CHECK_RUNTIME(cudaMemPrefetchAsync(values, kBytes, host, 0, nullptr));
  CHECK_RUNTIME(cudaDeviceSynchronize());
  for (int i = 0; i < kCount; ++i) EXPECT(values[i] == i + 1);
  int preferred = -7;
  cudaError_t asked =
      cudaMemRangeGetAttribute(&preferred, sizeof preferred, cudaMemRangeAttributePreferredLocation, values, kBytes);
  EXPECT(asked == cudaErrorNotSupported ||
         (asked == cudaSuccess && preferred == 0));  // not every device keeps the advice
  cudaGetLastError();
  EXPECT(cudaMemAdvise(values, kBytes + 1, cudaMemAdviseSetReadMostly, device) == cudaErrorInvalidValue);
  int* plain = nullptr;
  CHECK_RUNTIME(cudaMalloc(&plain, 4096));
  EXPECT(cudaMemPrefetchAsync(plain, 4096, device, 0, nullptr) == cudaErrorInvalidValue);
  cudaStream_t stream;
  CHECK_RUNTIME(cudaStreamCreate(&stream));
  CHECK_RUNTIME(cudaStreamAttachMemAsync(stream, values, 0, cudaMemAttachSingle));
  EXPECT(cudaStreamAttachMemAsync(stream, values + 1, 0, cudaMemAttachGlobal) == cudaErrorInvalidValue);
  EXPECT(cudaStreamAttachMemAsync(nullptr, values, 0, cudaMemAttachSingle) == cudaErrorInvalidValue);
  add<<<blocks(kCount), kThreads, 0, stream>>>(values, kCount, 1);
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  EXPECT(values[kCount - 1] == kCount + 1);
  cudaGetLastError();
  CHECK_RUNTIME(cudaStreamDestroy(stream));
  CHECK_RUNTIME(cudaFree(values));
}

void two_streams() {
  constexpr int kCount = 100000;
  cudaStream_t streams[2];
  int* values[2];
  for (int i = 0; i < 2; ++i) {
    CHECK_RUNTIME(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    values[i] = zeroed<int>(kCount);
  }
  for (int round = 1; round <= 10; ++round) {
    for (int i = 0; i < 2; ++i) add<<<blocks(kCount), kThreads, 0, streams[i]>>>(values[i], kCount, i + 1);
    CHECK_RUNTIME(cudaStreamSynchronize(streams[round % 2]));
    // The other stream may still be at work on its own.
    int i = round % 2;
    EXPECT(values[i][0] == round * (i + 1) && values[i][kCount - 1] == round * (i + 1));
  }
  cudaEvent_t event;
  CHECK_RUNTIME(cudaEventCreate(&event));
  CHECK_RUNTIME(cudaEventRecord(event, streams[1]));
  CHECK_RUNTIME(cudaEventSynchronize(event));
  EXPECT(values[1][kCount / 2] == 20);
  for (int i = 0; i < 2; ++i) {
    CHECK_RUNTIME(cudaStreamDestroy(streams[i]));
    CHECK_RUNTIME(cudaFree(values[i]));
  }
  CHECK_RUNTIME(cudaEventDestroy(event));
}

void graphs() {
  constexpr int kCount = 5000;
  int* values = managed<int>(kCount);
  cudaStream_t stream;
  CHECK_RUNTIME(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK_RUNTIME(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  add<<<blocks(kCount), kThreads, 0, stream>>>(values, kCount, 1);
  CHECK_RUNTIME(cudaStreamEndCapture(stream, &graph));
  CHECK_RUNTIME(cudaGraphInstantiate(&executable, graph, 0));
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < kCount; ++i) values[i] = i * round;
    CHECK_RUNTIME(cudaGraphLaunch(executable, stream));
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
    for (int i = 0; i < kCount; ++i) EXPECT(values[i] == i * round + 1);
  }
  CHECK_RUNTIME(cudaGraphExecDestroy(executable));
  CHECK_RUNTIME(cudaGraphDestroy(graph));
  CHECK_RUNTIME(cudaStreamDestroy(stream));
  CHECK_RUNTIME(cudaFree(values));
}

struct Told {
  int* values;
  int seen;
};
void host_functions() {
  int* values = zeroed<int>(1000);
  Told told{values, 0};
  add<<<blocks(1000), kThreads>>>(values, 1000, 3);
  CHECK_RUNTIME(cudaLaunchHostFunc(
      nullptr,
      [](void* user) {
        auto* told = static_cast<Told*>(user);
        told->seen = told->values[999];
        told->values[0] = 50;
      },
      &told));
  add<<<blocks(1000), kThreads>>>(values, 1000, 3);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  EXPECT(told.seen == 3 && values[0] == 53 && values[999] == 6);
  CHECK_RUNTIME(cudaFree(values));
}

// A host function can access its memory while the program's other thread is in a call that waits for it.
void host_function_beside_a_call() {
  int* values = zeroed<int>(100000);
  int* pinned = nullptr;
  CHECK_RUNTIME(cudaHostAlloc(&pinned, 4096, cudaHostAllocMapped));
  add<<<blocks(100000), kThreads>>>(values, 100000, 3);
  struct Beside {
    int* values;
    std::atomic<bool> called{false};
    int seen = 0;
  } beside{values};
  CHECK_RUNTIME(cudaLaunchHostFunc(
      nullptr,
      [](void* user) {
        auto* beside = static_cast<Beside*>(user);
        while (!beside->called) {}
        beside->seen = beside->values[99999];
        beside->values[0] = 50;
      },
      &beside));
  add<<<blocks(100000), kThreads>>>(values, 100000, 3);
  beside.called = true;
  CHECK_RUNTIME(cudaFreeHost(pinned));
  CHECK_RUNTIME(cudaDeviceSynchronize());
  EXPECT(beside.seen == 3 && values[0] == 53 && values[99999] == 6);
  CHECK_RUNTIME(cudaFree(values));
}

template <class T>
struct Allocator {
  using value_type = T;
  Allocator() = default;
  template <class U>
  Allocator(const Allocator<U>&) {}
  T* allocate(size_t count) { return managed<T>(count); }
  void deallocate(T* memory, size_t) { CHECK_RUNTIME(cudaFree(memory)); }
  bool operator==(const Allocator&) const { return true; }
  bool operator!=(const Allocator&) const { return false; }
};

void vectors() {
  std::vector<int, Allocator<int>> values;
  for (int i = 0; i < 30000; ++i) {
    values.push_back(i);
    if (i % 10000 == 0) add<<<blocks(int(values.size())), kThreads>>>(values.data(), int(values.size()), 0);
  }
  add<<<blocks(30000), kThreads>>>(values.data(), 30000, 1);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  for (int i = 0; i < 30000; ++i) EXPECT(values[i] == i + 1);
}

// Eight threads touch the same memory at once, then each its own with work of the device between.
void threads_at_once() {
  constexpr int kWorkers = 8, kEach = 40000;
  int* values = zeroed<int>(kWorkers * kEach);
  add<<<blocks(kWorkers * kEach), kThreads>>>(values, kWorkers * kEach, 1);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  std::atomic<int> wrong{0};
  auto everywhere = [](auto work) {
    std::vector<std::thread> workers;
    for (int worker = 0; worker < kWorkers; ++worker) workers.emplace_back(work, worker);
    for (std::thread& worker : workers) worker.join();
  };
  everywhere([&](int worker) {
    for (int i = worker; i < kWorkers * kEach; i += 997) wrong += values[i] != 1;
  });
  everywhere([&](int worker) {
    cudaStream_t stream;
    CHECK_RUNTIME(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    int* mine = values + worker * kEach;
    for (int round = 0; round < 10; ++round) {
      for (int i = 0; i < kEach; i += 13) mine[i] = round;
      add<<<blocks(kEach), kThreads, 0, stream>>>(mine, kEach, 1);
      CHECK_RUNTIME(cudaStreamSynchronize(stream));
      for (int i = 0; i < kEach; i += 13) wrong += mine[i] != round + 1;
      wrong += mine[1] != round + 2;
    }
    CHECK_RUNTIME(cudaStreamDestroy(stream));
  });
  EXPECT(wrong == 0);
  CHECK_RUNTIME(cudaFree(values));
}

void without_a_call() {
  volatile int* flags = zeroed<int>(2);
  answer<<<1, 1>>>(flags, flags + 1);
  CHECK_RUNTIME(cudaGetLastError());
  flags[0] = 41;
  while (flags[1] == 0) {}  // whoever runs this ends it when it hangs
  EXPECT(flags[1] == 42);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  CHECK_RUNTIME(cudaFree(const_cast<int*>(flags)));
}

// --- a program with a handler of its own ---------------------------------------------------------------------------

sigjmp_buf g_back;
struct sigaction g_found;
volatile sig_atomic_t g_handled = 0;
void recover(int, siginfo_t*, void*) {
  g_handled = g_handled + 1;
  siglongjmp(g_back, 1);
}
// A handler that does not know the address passes the fault to the previous handler.
void give_away(int signal, siginfo_t* info, void* context) {
  if (g_found.sa_flags & SA_SIGINFO) g_found.sa_sigaction(signal, info, context);
}

void install(void (*handler)(int, siginfo_t*, void*), struct sigaction* found) {
  struct sigaction ours {};
  ours.sa_sigaction = handler;
  ours.sa_flags = SA_SIGINFO;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGSEGV, &ours, found);
}

void fault_elsewhere(int expected) {
  auto* hole = static_cast<volatile int*>(mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (sigsetjmp(g_back, 1) == 0) *hole = 1;
  EXPECT(g_handled == expected);
  munmap(const_cast<int*>(hole), 4096);
}

void turn(int* values, int expected) {
  add<<<1, kThreads>>>(values, 100, 1);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  EXPECT(values[50] == expected);
}

void own_handlers() {
  int* values = zeroed<int>(100);
  turn(values, 1);
  fault_elsewhere(1);  // installed by main() before anything else
  turn(values, 2);
  install(recover, nullptr);  // after the stub's
  turn(values, 3);
  fault_elsewhere(2);
  turn(values, 4);
  fault_elsewhere(3);
  struct sigaction before;
  install(give_away, &g_found);  // the previous one is the stub's, or the program's
  turn(values, 5);
  fault_elsewhere(4);
  turn(values, 6);
  sigaction(SIGSEGV, nullptr, &before);
  CHECK_RUNTIME(cudaFree(values));
}

void large_and_fast() {
  constexpr int kCount = 16 << 20;
  int* values = managed<int>(kCount);
  for (int i = 0; i < kCount; ++i) values[i] = i;
  auto start = std::chrono::steady_clock::now();
  CHECK_RUNTIME(cudaMemset(values, 1, 4096));
  CHECK_RUNTIME(cudaDeviceSynchronize());
  auto sent = std::chrono::steady_clock::now();
  for (int i = 1024; i < kCount; ++i) EXPECT(values[i] == i);
  auto read = std::chrono::steady_clock::now();
  auto mib_per_s = [](auto duration) { return 64.0 / std::chrono::duration<double>(duration).count(); };
  std::fprintf(stderr, "large: to the device %.0f MiB/s, back %.0f MiB/s\n", mib_per_s(sent - start),
               mib_per_s(read - sent));
  CHECK_RUNTIME(cudaFree(values));
}

}  // namespace

int main(int argc, char** argv) {
  install(recover, nullptr);
  struct Part {
    const char* name;
    void (*run)();
  };
  const Part parts[] = {
      {"variables", variables},
      {"one", [] { both_sides_in_turns(1); }},
      {"small", [] { both_sides_in_turns(3000); }},
      {"large", [] { both_sides_in_turns(600000); }},
      {"bytes", bytes_of_one_page},
      {"list", linked_list},
      {"pointers", pointers_inside},
      {"copies", copies_and_fills},
      {"advice", advice_and_prefetching},
      {"streams", two_streams},
      {"graphs", graphs},
      {"host_functions", host_functions},
      {"host_function_beside", host_function_beside_a_call},
      {"vectors", vectors},
      {"threads", threads_at_once},
      {"without_a_call", without_a_call},
      {"handlers", own_handlers},
      {"fast", large_and_fast},
  };
  for (const Part& part : parts) {
    if (argc > 1 && std::string(argv[1]) != part.name) continue;
    part.run();
    std::fprintf(stderr, "%s\n", part.name);
  }
  std::printf("PASSED\n");
  return 0;
}
