// One tenant of a shared GPU, for bench/sharing/run: gives the GPU one kind of work for some seconds and reports the
// finished work with its times.
//
// Work is counted by the kernels themselves: each block of a kernel adds one to the bin of the GPU's own clock
// (globaltimer, the same for all processes) after each chunk of a fixed amount of arithmetic. So the shares do not
// depend on any process's clock.
//
// Says "ready" when it has warmed up, starts at the line "go" on standard input, and ends with one line of JSON.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned kBins = 1 << 14;
constexpr unsigned kBinNs = 10'000'000;

#define CHECK(call)                                                       \
  do {                                                                    \
    if (cudaError_t error = (call); error != cudaSuccess) {               \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error)); \
      std::exit(1);                                                       \
    }                                                                     \
  } while (0)

__device__ uint64_t device_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

// `iterations` of four dependent multiply-adds are a chunk; `sum` keeps the compiler from leaving them out.
__global__ void work(unsigned iterations, unsigned chunks, unsigned* bins, float* sum) {
  float a = threadIdx.x * 0.5f, b = 1.0001f;
  for (unsigned chunk = 0; chunk < chunks; ++chunk) {
    for (unsigned i = 0; i < iterations; ++i) {
      a = fmaf(a, b, 0.25f);
      a = fmaf(a, b, -0.25f);
      a = fmaf(a, b, 0.125f);
      a = fmaf(a, b, -0.125f);
    }
    if (threadIdx.x == 0) atomicAdd(&bins[(device_ns() / kBinNs) % kBins], 1u);
  }
  if (a == 12345.678f) *sum = a;
}

__global__ void read_clock(unsigned long long* ns) { *ns = device_ns(); }

struct Options {
  std::string mode = "saturate";
  double kernel_us = 100;        // GPU time of one kernel, alone
  double chunk_us = 20;          // a kernel counts at this interval; shorter kernels count once
  double iterations_per_us = 0;  // measured by --mode calibrate
  unsigned blocks = 264, threads = 1024;
  unsigned streams = 1, graph = 0;  // graph: that many kernels in one
  unsigned contexts = 1;            // above one: separate contexts, each with this many streams
  unsigned sync_every = 0;          // launches; 0: only to bound what is queued
  double gap_us = 0;                // idle time of the host between two launches
  double ahead_us = 20'000;         // GPU time that may be queued
  bool capturing = false;           // a capture is open in a stream of its own all the time
  double heartbeat_us = 0;          // so often a tiny kernel runs in a stream of its own; 0: never
  double seconds = 10;
  unsigned launches = 1;   // of one request
  bool sync_each = false;  // of its kernels
  double pause_us = 4000;  // mean time between the end of a request and the next one
  uint64_t seed = 1;
};

[[noreturn]] void usage(const char* what) {
  std::fprintf(
      stderr,
      "tenant: %s\n"
      "usage: tenant --mode calibrate|saturate|request [--kernel-us T] [--chunk-us T] [--iterations-per-us N] "
      "[--blocks N] [--threads N] [--seconds S]\n"
      "  saturate: [--streams N] [--contexts N] [--graph KERNELS] [--sync-every LAUNCHES] [--gap-us T] [--ahead-us T] "
      "[--capturing 1] [--heartbeat-us T]\n"
      "  request:  [--launches N] [--sync-each 1] [--pause-us T] [--seed N]\n",
      what);
  std::exit(2);
}

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i + 1 < argc; i += 2) {
    std::string name = argv[i];
    const char* value = argv[i + 1];
    auto number = [&](auto& out) { out = static_cast<std::remove_reference_t<decltype(out)>>(std::atof(value)); };
    if (name == "--mode") o.mode = value;
    else if (name == "--kernel-us") number(o.kernel_us);
    else if (name == "--chunk-us") number(o.chunk_us);
    else if (name == "--iterations-per-us") number(o.iterations_per_us);
    else if (name == "--blocks") number(o.blocks);
    else if (name == "--threads") number(o.threads);
    else if (name == "--streams") number(o.streams);
    else if (name == "--contexts") number(o.contexts);
    else if (name == "--graph") number(o.graph);
    else if (name == "--sync-every") number(o.sync_every);
    else if (name == "--gap-us") number(o.gap_us);
    else if (name == "--ahead-us") number(o.ahead_us);
    else if (name == "--capturing") number(o.capturing);
    else if (name == "--heartbeat-us") number(o.heartbeat_us);
    else if (name == "--seconds") number(o.seconds);
    else if (name == "--launches") number(o.launches);
    else if (name == "--sync-each") number(o.sync_each);
    else if (name == "--pause-us") number(o.pause_us);
    else if (name == "--seed") number(o.seed);
    else usage(("unknown option " + name).c_str());
  }
  if (argc % 2 == 0) usage("an option without a value");
  return o;
}

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// The parameters of a launch, and the place of its counters.
struct Kernel {
  unsigned iterations, chunks, blocks, threads;
  unsigned* bins = nullptr;
  float* sum = nullptr;
  CUcontext context = nullptr;  // where they lie

  void enter() const { cuCtxSetCurrent(context); }
  void launch(cudaStream_t stream) const { work<<<blocks, threads, 0, stream>>>(iterations, chunks, bins, sum); }
};

Kernel make_kernel(const Options& o) {
  Kernel kernel{1, 1, o.blocks, o.threads};
  double chunk_us = std::min(o.chunk_us, o.kernel_us);
  kernel.chunks = std::max(1u, unsigned(o.kernel_us / chunk_us + 0.5));
  kernel.iterations = std::max(1u, unsigned(o.iterations_per_us * o.kernel_us / kernel.chunks + 0.5));
  CHECK(cudaMalloc(&kernel.bins, kBins * sizeof(unsigned)));
  CHECK(cudaMalloc(&kernel.sum, sizeof(float)));
  CHECK(cudaMemset(kernel.bins, 0, kBins * sizeof(unsigned)));
  cuCtxGetCurrent(&kernel.context);
  return kernel;
}

// Returns the iterations of a chunk of 1 us on an otherwise idle GPU, from two lengths, so that the cost of a launch
// cancels out.
void calibrate(Options o) {
  o.iterations_per_us = 1;
  auto measure = [&](unsigned iterations) {
    Kernel kernel = make_kernel(o);
    kernel.iterations = iterations;
    kernel.chunks = 1;
    double best = 1e30;
    for (int round = 0; round < 5; ++round) {
      CHECK(cudaDeviceSynchronize());
      auto start = Clock::now();
      for (int i = 0; i < 20; ++i) kernel.launch(nullptr);
      CHECK(cudaDeviceSynchronize());
      best = std::min(best, us_since(start) / 20);
    }
    return best;
  };
  unsigned iterations = 16;
  while (iterations < (1u << 28) && measure(iterations) < 200) iterations *= 2;
  double per_us = iterations / (measure(2 * iterations) - measure(iterations));
  std::printf("{\"iterations_per_us\": %.4f}\n", per_us);
}

void say_ready_and_wait() {
  std::printf("ready\n");
  std::fflush(stdout);
  char line[16];
  if (!std::fgets(line, sizeof line, stdin) || std::strncmp(line, "go", 2) != 0) std::exit(3);
}

// What warming up has counted.
void forget_warm_up(const std::vector<Kernel>& kernels) {
  for (const Kernel& kernel : kernels) {
    kernel.enter();
    CHECK(cudaMemset(kernel.bins, 0, kBins * sizeof(unsigned)));
    CHECK(cudaDeviceSynchronize());
  }
}

void print_bins(const std::vector<Kernel>& kernels, unsigned long long clock_at_start) {
  std::vector<unsigned> sum(kBins), bins(kBins);
  for (const Kernel& kernel : kernels) {
    kernel.enter();
    CHECK(cudaMemcpy(bins.data(), kernel.bins, kBins * sizeof(unsigned), cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < kBins; ++i) sum[i] += bins[i];
  }
  // From the start on, as long as the ring is unambiguous.
  unsigned long long first = clock_at_start / kBinNs;
  unsigned last = 0;
  for (unsigned i = 0; i < kBins; ++i)
    if (sum[(first + i) % kBins]) last = i;
  std::printf("\"first_bin\": %llu, \"bin_ms\": %u, \"bins\": [", first, kBinNs / 1'000'000);
  for (unsigned i = 0; i <= last; ++i) std::printf(i ? ",%u" : "%u", sum[(first + i) % kBins]);
  std::printf("]");
}

unsigned long long gpu_clock() {
  unsigned long long *ns = nullptr, value = 0;
  CHECK(cudaMalloc(&ns, sizeof *ns));
  read_clock<<<1, 1>>>(ns);
  CHECK(cudaMemcpy(&value, ns, sizeof value, cudaMemcpyDeviceToHost));
  CHECK(cudaFree(ns));
  return value;
}

void spin_us(double us) {
  auto start = Clock::now();
  while (us_since(start) < us) {}
}

// The context that the runtime uses, or a new one beside it.
void choose_context(bool own) {
  CHECK(cudaFree(nullptr));
  CUcontext context = nullptr;
  if (own && cuCtxCreate(&context, nullptr, 0, 0) != CUDA_SUCCESS) {
    std::fprintf(stderr, "cuCtxCreate failed\n");
    std::exit(1);
  }
}

// Streams, each with its own counters; work is distributed over them in turn.
class Lanes {
 public:
  explicit Lanes(const Options& o) {
    unsigned streams = std::max(o.streams, 1u), contexts = std::max(o.contexts, 1u);
    for (unsigned i = 0; i < streams * contexts; ++i) {
      if (i % streams == 0) choose_context(contexts > 1);
      Lane lane{make_kernel(o)};
      CHECK(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking));
      for (cudaEvent_t& event : lane.events) CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
      if (o.graph) lane.graph = capture(lane, o.graph);
      lanes_.push_back(lane);
    }
  }

  // One kernel, or one graph of them.
  void submit() {
    Lane& lane = lanes_[next_];
    lane.kernel.enter();
    if (lane.graph) CHECK(cudaGraphLaunch(lane.graph, lane.stream));
    else lane.kernel.launch(lane.stream);
    next_ = (next_ + 1) % lanes_.size();
  }
  // The queue is limited: half of it has to be done before another half is queued.
  void mark_half() {
    for (Lane& lane : lanes_) {
      lane.kernel.enter();
      CHECK(cudaEventRecord(lane.events[half_], lane.stream));
      CHECK(cudaEventSynchronize(lane.events[1 - half_]));
    }
    half_ = 1 - half_;
  }
  void synchronize() {
    for (Lane& lane : lanes_) {
      lane.kernel.enter();
      CHECK(cudaStreamSynchronize(lane.stream));
    }
  }
  size_t count() const { return lanes_.size(); }
  std::vector<Kernel> kernels() const {
    std::vector<Kernel> out;
    for (const Lane& lane : lanes_) out.push_back(lane.kernel);
    return out;
  }

 private:
  struct Lane {
    Kernel kernel;
    cudaStream_t stream = nullptr;
    cudaEvent_t events[2] = {};
    cudaGraphExec_t graph = nullptr;
  };
  static cudaGraphExec_t capture(const Lane& lane, unsigned kernels) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(lane.stream, cudaStreamCaptureModeThreadLocal));
    for (unsigned i = 0; i < kernels; ++i) lane.kernel.launch(lane.stream);
    CHECK(cudaStreamEndCapture(lane.stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    return exec;
  }
  std::vector<Lane> lanes_;
  size_t next_ = 0;
  int half_ = 0;
};

cudaStream_t new_stream() {
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

// While the object exists, a capture is open that forbids no other call.
class OpenCapture {
 public:
  explicit OpenCapture(bool wanted) {
    if (!wanted) return;
    stream_ = new_stream();
    CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
  }
  ~OpenCapture() {
    cudaGraph_t graph = nullptr;
    if (stream_) CHECK(cudaStreamEndCapture(stream_, &graph));
  }
  OpenCapture(const OpenCapture&) = delete;
  OpenCapture& operator=(const OpenCapture&) = delete;

 private:
  cudaStream_t stream_ = nullptr;
};

// While the object exists, tiny kernels end again and again, even if other work of the process does not.
class Heartbeat {
 public:
  explicit Heartbeat(double every_us) {
    if (every_us <= 0) return;
    CHECK(cudaMalloc(&ns_, sizeof *ns_));
    thread_ = std::thread([this, every_us, stream = new_stream()] {
      while (!over_) {
        read_clock<<<1, 1, 0, stream>>>(ns_);
        CHECK(cudaStreamSynchronize(stream));
        std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(every_us));
      }
    });
  }
  ~Heartbeat() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
  }
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

 private:
  unsigned long long* ns_ = nullptr;
  std::atomic<bool> over_{false};  // a flag between two threads, which orders nothing else
  std::thread thread_;
};

void saturate(const Options& o) {
  Lanes lanes(o);
  // The first launch in a context loads the kernel there.
  for (size_t i = 0; i < std::max<size_t>(3, lanes.count()); ++i) lanes.submit();
  lanes.synchronize();
  double launch_us = o.kernel_us * std::max(o.graph, 1u);
  forget_warm_up(lanes.kernels());
  unsigned half = std::max(1u, unsigned(o.ahead_us / 2 / launch_us));
  say_ready_and_wait();
  unsigned long long clock_at_start = gpu_clock();
  const OpenCapture capture(o.capturing);
  const Heartbeat heartbeat(o.heartbeat_us);
  auto start = Clock::now();
  uint64_t launches = 0;
  while (us_since(start) < o.seconds * 1e6) {
    lanes.submit();
    ++launches;
    if (o.gap_us > 0) spin_us(o.gap_us);
    if (o.sync_every && launches % o.sync_every == 0) lanes.synchronize();
    else if (launches % half == 0) lanes.mark_half();
  }
  lanes.synchronize();
  double seconds = us_since(start) / 1e6;
  std::printf("{\"mode\": \"saturate\", \"kernel_us\": %g, \"launches\": %llu, \"seconds\": %.4f, ", o.kernel_us,
              (unsigned long long)launches, seconds);
  print_bins(lanes.kernels(), clock_at_start);
  std::printf("}\n");
}

void requests(const Options& o) {
  Kernel kernel = make_kernel(o);
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::mt19937_64 random(o.seed);
  std::uniform_real_distribution<double> pause(0.5 * o.pause_us, 1.5 * o.pause_us);
  auto request = [&] {
    auto start = Clock::now();
    for (unsigned i = 0; i < o.launches; ++i) {
      kernel.launch(stream);
      if (o.sync_each) CHECK(cudaStreamSynchronize(stream));
    }
    CHECK(cudaStreamSynchronize(stream));
    return us_since(start);
  };
  for (int i = 0; i < 5; ++i) request();
  forget_warm_up({kernel});
  say_ready_and_wait();
  unsigned long long clock_at_start = gpu_clock();
  std::vector<double> latencies;
  auto start = Clock::now();
  while (us_since(start) < o.seconds * 1e6) {
    std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(pause(random)));
    latencies.push_back(request());
  }
  std::printf("{\"mode\": \"request\", \"gpu_us\": %g, \"seconds\": %.4f, \"latencies_us\": [",
              o.kernel_us * o.launches, us_since(start) / 1e6);
  for (size_t i = 0; i < latencies.size(); ++i) std::printf(i ? ",%.1f" : "%.1f", latencies[i]);
  std::printf("], ");
  print_bins({kernel}, clock_at_start);
  std::printf("}\n");
}

}  // namespace

int main(int argc, char** argv) {
  Options o = parse(argc, argv);
  if (o.mode == "calibrate") {
    calibrate(o);
    return 0;
  }
  if (o.iterations_per_us <= 0) usage("--iterations-per-us is needed (--mode calibrate tells it)");
  if (o.mode == "saturate") saturate(o);
  else if (o.mode == "request") requests(o);
  else usage("unknown mode");
}
