// Captured graphs of random shape, with kernels, copies, fills and host functions on several streams: every node sees
// the results of all nodes before it. usage: graph_orders [GRAPHS [SEED]]
#include <cuda_runtime.h>

#include <bitset>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "../../../../examples/check.hpp"

constexpr int kStreams = 4, kNodes = 24, kLaunches = 4;
using Ancestors = std::bitset<kNodes>;

__global__ void mark(volatile unsigned* done, unsigned* launch) { *done = *launch; }

// The record of one graph's nodes: done[i] is the number of the launch in which node i last ran.
struct Board {
  unsigned* done = nullptr;    // where kernels (if it is pinned), copies and host functions write
  unsigned* launch = nullptr;  // pinned: the number of the current launch, by the graph's first node
  unsigned* device = nullptr;  // the launch's number, and a word for each node
  unsigned number = 0;
  int wrong = 0;
};

struct HostNode {
  Board* board;
  int index;
  Ancestors before;
};

static void CUDART_CB begin(void* user) {
  auto* board = static_cast<Board*>(user);
  *board->launch = ++board->number;
}

static void CUDART_CB look(void* user) {
  auto* node = static_cast<HostNode*>(user);
  for (int i = 0; i < kNodes; ++i) {
    if (node->before[size_t(i)] && node->board->done[i] != node->board->number) {
      if (node->board->wrong++ == 0)
        std::printf("node %d ran in launch %u before node %d (%u)\n", node->index, node->board->number, i,
                    node->board->done[i]);
    }
  }
  node->board->done[node->index] = node->board->number;
}

class RandomGraph {
 public:
  RandomGraph(unsigned seed, cudaStream_t* streams)
      : streams_(streams), random_(seed), pinned_(seed % 2 == 0), pageable_(kNodes) {
    board_.done = pageable_.data();
    if (pinned_) CHECK_RUNTIME(cudaMallocHost(&board_.done, kNodes * sizeof(unsigned)));
    CHECK_RUNTIME(cudaMallocHost(&board_.launch, sizeof(unsigned)));
    CHECK_RUNTIME(cudaMalloc(&board_.device, (1 + kNodes) * sizeof(unsigned)));
    for (int i = 0; i < kNodes; ++i) board_.done[i] = 0;
    nodes_.reserve(kNodes);
    capture();
  }
  ~RandomGraph() {
    CHECK_RUNTIME(cudaGraphExecDestroy(exec_));
    CHECK_RUNTIME(cudaFree(board_.device));
    CHECK_RUNTIME(cudaFreeHost(board_.launch));
    if (pinned_) CHECK_RUNTIME(cudaFreeHost(board_.done));
  }

  void launch(cudaStream_t stream) { CHECK_RUNTIME(cudaGraphLaunch(exec_, stream)); }
  // After all launches have ended.
  int wrong() const {
    int count = board_.wrong;
    for (int i = 0; i < kNodes; ++i) count += board_.done[i] != board_.number;
    return count + (board_.number != kLaunches);
  }

 private:
  void wait(int stream, cudaEvent_t event, const Ancestors& before) {
    CHECK_RUNTIME(cudaStreamWaitEvent(streams_[stream], event, 0));
    before_[stream] |= before;
  }

  void capture() {
    std::vector<cudaEvent_t> events;
    auto record = [&](int stream) {
      events.emplace_back();
      CHECK_RUNTIME(cudaEventCreateWithFlags(&events.back(), cudaEventDisableTiming));
      CHECK_RUNTIME(cudaEventRecord(events.back(), streams_[stream]));
      return events.back();
    };
    CHECK_RUNTIME(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeRelaxed));
    CHECK_RUNTIME(cudaLaunchHostFunc(streams_[0], begin, &board_));
    // The source of copies to the device and of copies that read the kernels' memory.
    CHECK_RUNTIME(cudaMemcpyAsync(board_.device, board_.launch, sizeof(unsigned), cudaMemcpyHostToDevice, streams_[0]));
    cudaEvent_t start = record(0);
    for (int i = 1; i < kStreams; ++i) wait(i, start, {});
    for (int node = 0; node < kNodes; ++node) {
      const int stream = int(random_() % kStreams);
      if (random_() % 2) {
        const int other = int(random_() % kStreams);
        if (other != stream) wait(stream, record(other), before_[other]);
      }
      add(node, stream);
      before_[stream].set(size_t(node));
    }
    for (int i = 1; i < kStreams; ++i) wait(0, record(i), before_[i]);
    cudaGraph_t graph;
    CHECK_RUNTIME(cudaStreamEndCapture(streams_[0], &graph));
    CHECK_RUNTIME(cudaGraphInstantiate(&exec_, graph, 0));
    CHECK_RUNTIME(cudaGraphDestroy(graph));
    for (cudaEvent_t event : events) CHECK_RUNTIME(cudaEventDestroy(event));
  }

  void add(int node, int stream) {
    switch (random_() % 4) {
      case 0:
        if (pinned_) {
          mark<<<1, 1, 0, streams_[stream]>>>(board_.done + node, board_.device);
          break;
        }
        [[fallthrough]];
      case 1: down(node, board_.device, stream); break;
      case 2: {
        // An earlier node's write to host memory is copied to the device and back.
        const int from = ancestor(stream);
        // CUDA does not define when a driver reads pageable memory that a host function of the graph writes.
        if (from < 0 || (!pinned_ && by_host_.test(size_t(from)))) return down(node, board_.device, stream);
        unsigned* const word = board_.device + 1 + node;
        CHECK_RUNTIME(
            cudaMemcpyAsync(word, board_.done + from, sizeof(unsigned), cudaMemcpyHostToDevice, streams_[stream]));
        down(node, word, stream);
        break;
      }
      default:
        by_host_.set(size_t(node));
        nodes_.push_back({&board_, node, before_[stream]});
        CHECK_RUNTIME(cudaLaunchHostFunc(streams_[stream], look, &nodes_.back()));
    }
  }

  void down(int node, const unsigned* from, int stream) {
    CHECK_RUNTIME(
        cudaMemcpyAsync(board_.done + node, from, sizeof(unsigned), cudaMemcpyDeviceToHost, streams_[stream]));
  }

  int ancestor(int stream) {
    std::vector<int> found;
    for (int i = 0; i < kNodes; ++i) {
      if (before_[stream][size_t(i)]) found.push_back(i);
    }
    return found.empty() ? -1 : found[random_() % found.size()];
  }

  cudaStream_t* streams_;
  std::mt19937 random_;
  bool pinned_;
  std::vector<unsigned> pageable_;
  Board board_;
  Ancestors before_[kStreams];
  Ancestors by_host_;  // nodes that are host functions
  std::vector<HostNode> nodes_;
  cudaGraphExec_t exec_ = nullptr;
};

int main(int count, char** arguments) {
  const int graphs = count > 1 ? std::atoi(arguments[1]) : 20;
  const unsigned seed = count > 2 ? unsigned(std::atoi(arguments[2])) : 7;
  std::printf("seed %u\n", seed);
  cudaStream_t streams[kStreams];
  for (cudaStream_t& stream : streams) CHECK_RUNTIME(cudaStreamCreate(&stream));
  int wrong = 0;
  for (int i = 0; i < graphs; ++i) {
    RandomGraph one(seed + unsigned(2 * i), streams), other(seed + unsigned(2 * i) + 1, streams);
    // Two graphs run concurrently, and each is launched again while it runs.
    for (int launch = 0; launch < kLaunches; ++launch) {
      one.launch(streams[1]);
      other.launch(streams[2]);
    }
    CHECK_RUNTIME(cudaDeviceSynchronize());
    const int found = one.wrong() + other.wrong();
    if (found) std::printf("graphs %d: %d wrong\n", i, found);
    wrong += found;
  }
  std::printf("%s\n", wrong ? "FAILED" : "PASSED");
  return wrong ? 1 : 0;
}
