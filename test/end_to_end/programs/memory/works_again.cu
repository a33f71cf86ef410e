// A program whose state on the device is checked after each piece of work: memory of cudaMalloc and of a pool, found by
// a table of addresses in device memory, a variable, a graph, streams and events. Executes a command for each line of
// its standard input, and answers with a line: "work N" does a piece of work, "right" if all results are those of the
// host; "hold MIB" allocates so much more, whose contents each piece of work checks and changes; "stand" leaves a
// kernel in flight, "go" lets it end; "capture" begins a capture, "captured" ends it; "managed" allocates managed
// memory. Prints "ready" first and PASSED at the end.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "../../../../examples/check.hpp"
#include "../standing_stream.hpp"

namespace {

constexpr unsigned kCount = 1u << 20;  // elements of each array: 4 MiB
constexpr unsigned kBlock = 256;

__device__ unsigned rounds_on_device;

__global__ void mix(unsigned* const* table, const unsigned* seed) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  table[0][i] = table[0][i] * 3 + *seed + i;
  if (i == 0) ++rounds_on_device;
}

__global__ void fold(unsigned* const* table) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  table[1][i] ^= table[0][i] + table[2][i];
  table[2][i] += table[1][i];
}

class Work {
 public:
  Work() {
    CHECK_RUNTIME(cudaStreamCreate(&copies_));
    CHECK_RUNTIME(cudaStreamCreateWithFlags(&kernels_, cudaStreamNonBlocking));
    CHECK_RUNTIME(cudaEventCreateWithFlags(&copied_, cudaEventDisableTiming));
    CHECK_RUNTIME(cudaEventCreate(&computed_));
    CHECK_RUNTIME(cudaMalloc(&arrays_[0], kBytes));
    CHECK_RUNTIME(cudaMalloc(&arrays_[1], kBytes));
    CHECK_RUNTIME(cudaMallocAsync(&arrays_[2], kBytes, copies_));
    CHECK_RUNTIME(cudaMalloc(&table_, sizeof arrays_));
    CHECK_RUNTIME(cudaMalloc(&seed_, sizeof *seed_));
    for (unsigned* array : arrays_) CHECK_RUNTIME(cudaMemsetAsync(array, 0, kBytes, copies_));
    CHECK_RUNTIME(cudaMemcpyAsync(table_, arrays_, sizeof arrays_, cudaMemcpyHostToDevice, copies_));
    CHECK_RUNTIME(cudaStreamSynchronize(copies_));
    CHECK_RUNTIME(cudaStreamBeginCapture(kernels_, cudaStreamCaptureModeThreadLocal));
    mix<<<kCount / kBlock, kBlock, 0, kernels_>>>(table_, seed_);
    fold<<<kCount / kBlock, kBlock, 0, kernels_>>>(table_);
    cudaGraph_t graph;
    CHECK_RUNTIME(cudaStreamEndCapture(kernels_, &graph));
    CHECK_RUNTIME(cudaGraphInstantiate(&exec_, graph, 0));
    CHECK_RUNTIME(cudaGraphDestroy(graph));
  }

  const char* hold(size_t bytes) {
    const cudaError_t error = cudaMalloc(&held_, bytes);
    if (error != cudaSuccess) return cudaGetErrorName(error);
    held_found_.resize(bytes);
    CHECK_RUNTIME(cudaMemset(held_, held_value_, bytes));
    return "held";
  }

  bool round(unsigned seed) {
    for (unsigned i = 0; i < kCount; ++i) {
      expected_[0][i] = expected_[0][i] * 3 + seed + i;
      expected_[1][i] ^= expected_[0][i] + expected_[2][i];
      expected_[2][i] += expected_[1][i];
    }
    ++rounds_;
    CHECK_RUNTIME(cudaMemcpyAsync(seed_, &seed, sizeof seed, cudaMemcpyHostToDevice, copies_));
    CHECK_RUNTIME(cudaEventRecord(copied_, copies_));
    CHECK_RUNTIME(cudaStreamWaitEvent(kernels_, copied_, 0));
    CHECK_RUNTIME(cudaGraphLaunch(exec_, kernels_));
    CHECK_RUNTIME(cudaEventRecord(computed_, kernels_));
    CHECK_RUNTIME(cudaStreamWaitEvent(copies_, computed_, 0));
    bool right = true;
    if (held_) {
      CHECK_RUNTIME(cudaMemcpy(held_found_.data(), held_, held_found_.size(), cudaMemcpyDeviceToHost));
      for (const unsigned char byte : held_found_) right = right && byte == held_value_;
      held_value_ = static_cast<unsigned char>(seed);
      CHECK_RUNTIME(cudaMemset(held_, held_value_, held_found_.size()));
    }
    for (int i = 0; i < 3; ++i) {
      CHECK_RUNTIME(cudaMemcpyAsync(found_.data(), arrays_[i], kBytes, cudaMemcpyDeviceToHost, copies_));
      CHECK_RUNTIME(cudaStreamSynchronize(copies_));
      right = right && found_ == expected_[i];
    }
    unsigned counted = 0;
    CHECK_RUNTIME(cudaMemcpyFromSymbol(&counted, rounds_on_device, sizeof counted));
    return right && counted == rounds_ && cudaEventQuery(computed_) == cudaSuccess;
  }

  void begin_capture() { CHECK_RUNTIME(cudaStreamBeginCapture(kernels_, cudaStreamCaptureModeRelaxed)); }
  void end_capture() {
    cudaGraph_t graph;
    CHECK_RUNTIME(cudaStreamEndCapture(kernels_, &graph));
    CHECK_RUNTIME(cudaGraphDestroy(graph));
  }

 private:
  static constexpr size_t kBytes = kCount * sizeof(unsigned);

  cudaStream_t copies_ = nullptr, kernels_ = nullptr;
  cudaEvent_t copied_ = nullptr, computed_ = nullptr;
  unsigned* arrays_[3] = {};
  unsigned** table_ = nullptr;
  unsigned* seed_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
  void* held_ = nullptr;
  unsigned char held_value_ = 1;
  std::vector<unsigned char> held_found_;
  unsigned rounds_ = 0;
  std::vector<unsigned> expected_[3] = {std::vector<unsigned>(kCount), std::vector<unsigned>(kCount),
                                        std::vector<unsigned>(kCount)};
  std::vector<unsigned> found_ = std::vector<unsigned>(kCount);
};

}  // namespace

int main() {
  Work work;
  StandingStream standing;
  unsigned* word = nullptr;
  CHECK_RUNTIME(cudaMalloc(&word, sizeof *word));
  std::printf("ready\n");
  std::fflush(stdout);
  char line[64];
  while (std::fgets(line, sizeof line, stdin)) {
    unsigned seed = 0, mib = 0;
    const char* answer = "done";
    if (std::sscanf(line, "work %u", &seed) == 1) {
      answer = work.round(seed) ? "right" : "wrong";
    } else if (std::sscanf(line, "hold %u", &mib) == 1) {
      answer = work.hold(size_t(mib) << 20);
    } else if (std::strcmp(line, "stand\n") == 0) {
      standing.stand();
      CHECK_RUNTIME(cudaMemsetAsync(word, 1, sizeof *word, standing));
    } else if (std::strcmp(line, "go\n") == 0) {
      standing.go();
      CHECK_RUNTIME(cudaStreamSynchronize(standing));
    } else if (std::strcmp(line, "capture\n") == 0) {
      work.begin_capture();
    } else if (std::strcmp(line, "captured\n") == 0) {
      work.end_capture();
    } else if (std::strcmp(line, "managed\n") == 0) {
      void* managed = nullptr;
      CHECK_RUNTIME(cudaMallocManaged(&managed, 4096));
      CHECK_RUNTIME(cudaMemset(managed, 0, 4096));
    }
    std::printf("%s\n", answer);
    std::fflush(stdout);
  }
  std::printf("PASSED\n");
  return 0;
}
