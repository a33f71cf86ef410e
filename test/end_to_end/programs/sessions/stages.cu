// usage: stages [ROUNDS [told]]: goes through the states of a session repeatedly, prints each stage before it begins
// (`told`: and begins it after a line on standard input), and checks every result. Uninterrupted it ends with PASSED;
// where a call fails it prints the error's name, makes sure that what comes after fails at once, and exits with 3.
#include <cuda_runtime.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

constexpr int kCount = 300'000;  // more than a copy that is kept in the ring
constexpr size_t kBytes = kCount * sizeof(int);
constexpr unsigned kBlocks = (kCount + 255) / 256;

__global__ void add(int* data, int count, int value) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] += value;
}

void must(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("%s\n", cudaGetErrorName(error));
  void* more = nullptr;
  if (cudaMalloc(&more, 16) == cudaSuccess) std::printf("an allocation succeeded after the end\n");
  std::fflush(stdout);
  _exit(3);
}

void must_be(bool right, const char* what) {
  if (right) return;
  std::printf("wrong: %s\nFAILED\n", what);
  std::fflush(stdout);
  _exit(1);
}

bool all(const int* data, int value) {
  for (int i = 0; i < kCount; ++i)
    if (data[i] != value) return false;
  return true;
}

void count(void* calls) { ++*static_cast<int*>(calls); }

struct State {
  std::vector<int> pageable = std::vector<int>(kCount);
  int *device = nullptr, *pinned = nullptr, *managed = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  cudaGraphExec_t graph = nullptr;
  int value = 0;  // what every element on the device is
  int calls = 0;
};

void upload(State& it) {
  std::vector<int> host(kCount, ++it.value);
  must(cudaMemcpy(it.device, host.data(), kBytes, cudaMemcpyHostToDevice));
}

void download(State& it) {
  must(cudaMemcpy(it.pageable.data(), it.device, kBytes, cudaMemcpyDeviceToHost));
  must_be(all(it.pageable.data(), it.value), "what came back");
}

void small_copies(State& it) {
  for (int i = 0; i < 20; ++i) {
    int there = i, back = -1;
    must(cudaMemcpy(it.managed, &there, sizeof there, cudaMemcpyDefault));
    must(cudaMemcpy(&back, it.managed, sizeof back, cudaMemcpyDefault));
    must_be(back == i, "a small copy");
  }
}

void pinned_copies(State& it) {
  ++it.value;
  for (int i = 0; i < kCount; ++i) it.pinned[i] = it.value;
  must(cudaMemcpyAsync(it.device, it.pinned, kBytes, cudaMemcpyHostToDevice, it.stream));
  add<<<kBlocks, 256, 0, it.stream>>>(it.device, kCount, 1);
  ++it.value;
  must(cudaMemcpyAsync(it.pinned, it.device, kBytes, cudaMemcpyDeviceToHost, it.stream));
  must(cudaStreamSynchronize(it.stream));
  must_be(all(it.pinned, it.value), "pinned memory");
}

void launches(State& it) {
  for (int i = 0; i < 40; ++i) add<<<1, 64, 0, it.stream>>>(it.device, 0, 1);
  add<<<kBlocks, 256, 0, it.stream>>>(it.device, kCount, 3);
  it.value += 3;
  must(cudaGetLastError());
  must(cudaEventRecord(it.event, it.stream));
  cudaError_t done;
  while ((done = cudaEventQuery(it.event)) == cudaErrorNotReady) {}
  must(done);
}

void callbacks(State& it) {
  int before = it.calls;
  for (int i = 0; i < 5; ++i) must(cudaLaunchHostFunc(it.stream, count, &it.calls));
  must(cudaStreamSynchronize(it.stream));
  must_be(it.calls == before + 5, "the number of calls of host functions");
}

void allocations(State& it) {
  for (int i = 0; i < 5; ++i) {
    void *ordered = nullptr, *plain = nullptr;
    must(cudaMallocAsync(&ordered, 1 << 20, it.stream));
    must(cudaMemsetAsync(ordered, 1, 1 << 20, it.stream));
    must(cudaFreeAsync(ordered, it.stream));
    must(cudaMalloc(&plain, 1 << 20));
    must(cudaFree(plain));
  }
  must(cudaStreamSynchronize(it.stream));
}

void managed_memory(State& it) {
  for (int i = 0; i < kCount; ++i) it.managed[i] = it.value;
  add<<<kBlocks, 256>>>(it.managed, kCount, 5);
  must(cudaDeviceSynchronize());
  must_be(all(it.managed, it.value + 5), "managed memory");
}

void graph(State& it) {
  if (!it.graph) {
    cudaGraph_t graph;
    must(cudaStreamBeginCapture(it.stream, cudaStreamCaptureModeThreadLocal));
    add<<<kBlocks, 256, 0, it.stream>>>(it.device, kCount, 7);
    must(cudaStreamEndCapture(it.stream, &graph));
    must(cudaGraphInstantiate(&it.graph, graph, 0));
    must(cudaGraphDestroy(graph));
  }
  must(cudaGraphLaunch(it.graph, it.stream));
  it.value += 7;
  must(cudaStreamSynchronize(it.stream));
}

constexpr struct {
  const char* name;
  void (*run)(State&);
} kStages[] = {{"upload", upload},
               {"launches", launches},
               {"download", download},
               {"pinned copies", pinned_copies},
               {"graph", graph},
               {"callbacks", callbacks},
               {"small copies", small_copies},
               {"allocations", allocations},
               {"managed memory", managed_memory},
               {"download", download}};

}  // namespace

int main(int argc, char** argv) {
  int rounds = argc > 1 ? std::atoi(argv[1]) : 1;
  const bool told = argc > 2 && std::strcmp(argv[2], "told") == 0;
  State it;
  must(cudaMalloc(&it.device, kBytes));
  must(cudaMallocHost(&it.pinned, kBytes));
  must(cudaMallocManaged(&it.managed, kBytes));
  must(cudaStreamCreate(&it.stream));
  must(cudaEventCreate(&it.event));
  for (int round = 0; round < rounds; ++round) {
    for (auto& stage : kStages) {
      std::printf("%d: %s\n", round, stage.name);
      std::fflush(stdout);
      for (int said = 0; told && said != '\n' && said != EOF;) said = std::getchar();
      stage.run(it);
    }
  }
  std::printf("PASSED\n");
  return 0;
}
