// One of two programs that share a GPU, for the row "pairs" of bench/sharing/run. It repeats one kind of work.
//   pair_tenant sync|graphs|copies|managed SECONDS [ROUNDS]
// Says "ready" when it has warmed up. Each line "go" on standard input begins a round, which ends with one line of
// JSON: when each iteration ended, on the host's clock, which is the same for all processes. ROUNDS (1): how many; 0:
// until standard input ends. Kernels count in device memory, and the count has to agree with the number of iterations.
#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <vector>

namespace {

constexpr unsigned kBlocks = 132, kThreads = 256;
constexpr size_t kCopyBytes = 8u << 20, kManagedWords = (8u << 20) / sizeof(float), kTouchedWords = 4096;
constexpr unsigned kGraphKernels = 50;
constexpr int kShort = 500, kLong = 4000;  // steps of arithmetic

#define CHECK(call)                                                       \
  do {                                                                    \
    if (cudaError_t error = (call); error != cudaSuccess) {               \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error)); \
      std::exit(1);                                                       \
    }                                                                     \
  } while (0)

__global__ void work(int steps, float* sum, unsigned long long* count) {
  float a = threadIdx.x * 0.5f;
  for (int i = 0; i < steps; ++i) a = fmaf(a, 0.999f, 0.25f);
  if (a == 12345.678f) *sum = a;
  if (blockIdx.x == 0 && threadIdx.x == 0) ++*count;
}

__global__ void add(float* data, size_t words, unsigned long long* count) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x) data[i] += 1;
  if (blockIdx.x == 0 && threadIdx.x == 0) ++*count;
}

struct Program {
  cudaStream_t stream = nullptr;
  float *device = nullptr, *host = nullptr, *managed = nullptr;
  unsigned long long* count = nullptr;
  cudaGraphExec_t graph = nullptr;
  unsigned counts_per_iteration = 1;

  void kernel(int steps) { work<<<kBlocks, kThreads, 0, stream>>>(steps, device, count); }
  void wait() { CHECK(cudaStreamSynchronize(stream)); }

  Program() {
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&device, kCopyBytes));
    CHECK(cudaMalloc(&count, sizeof *count));
    CHECK(cudaMemset(count, 0, sizeof *count));
    CHECK(cudaMallocHost(&host, kCopyBytes));
    CHECK(cudaMallocManaged(&managed, kManagedWords * sizeof(float)));
    CHECK(cudaDeviceSynchronize());
    std::memset(managed, 0, kManagedWords * sizeof(float));
  }
  void sync() {
    kernel(kShort);
    wait();
  }
  void graphs() {
    if (!graph) {
      cudaGraph_t captured;
      CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      for (unsigned i = 0; i < kGraphKernels; ++i) kernel(kLong);
      CHECK(cudaStreamEndCapture(stream, &captured));
      CHECK(cudaGraphInstantiate(&graph, captured, 0));
      counts_per_iteration = kGraphKernels;
    }
    CHECK(cudaGraphLaunch(graph, stream));
    wait();
  }
  void copies() {
    CHECK(cudaMemcpyAsync(device, host, kCopyBytes, cudaMemcpyHostToDevice, stream));
    kernel(kLong);
    CHECK(cudaMemcpyAsync(host, device, kCopyBytes, cudaMemcpyDeviceToHost, stream));
    wait();
  }
  // Between two kernels over the whole memory the host writes and reads a small part.
  void managed_memory() {
    for (size_t i = 0; i < kTouchedWords; ++i) managed[i] += 1;
    add<<<kBlocks, kThreads, 0, stream>>>(managed, kManagedWords, count);
    CHECK(cudaGetLastError());
    wait();
  }
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, void (Program::*)()> modes = {{"sync", &Program::sync},
                                                            {"graphs", &Program::graphs},
                                                            {"copies", &Program::copies},
                                                            {"managed", &Program::managed_memory}};
  const auto mode = argc == 3 || argc == 4 ? modes.find(argv[1]) : modes.end();
  if (mode == modes.end()) {
    std::fprintf(stderr, "usage: pair_tenant sync|graphs|copies|managed SECONDS [ROUNDS]\n");
    return 2;
  }
  const double seconds = std::atof(argv[2]);
  const long rounds = argc == 4 ? std::atol(argv[3]) : 1;
  constexpr unsigned kWarm = 20;
  Program program;
  size_t iterations = kWarm;
  for (unsigned i = 0; i < kWarm; ++i) (program.*mode->second)();
  std::printf("ready\n");
  std::fflush(stdout);
  for (long round = 0; rounds == 0 || round < rounds; ++round) {
    std::string line;
    if (!std::getline(std::cin, line)) return rounds == 0 ? 0 : 3;
    if (line != "go") return 3;
    std::vector<double> ends;
    for (const double until = now() + seconds; ends.empty() || ends.back() < until; ends.push_back(now()))
      (program.*mode->second)();
    iterations += ends.size();
    unsigned long long counted = 0;
    CHECK(cudaMemcpy(&counted, program.count, sizeof counted, cudaMemcpyDeviceToHost));
    if (counted != iterations * program.counts_per_iteration) {
      std::fprintf(stderr, "the GPU has counted %llu kernels in %zu iterations\n", counted, iterations);
      return 1;
    }
    std::printf("{\"mode\": \"%s\", \"ends\": [", argv[1]);
    for (size_t i = 0; i < ends.size(); ++i) std::printf("%s%.6f", i ? ", " : "", ends[i]);
    std::printf("]}\n");
    std::fflush(stdout);
  }
}
