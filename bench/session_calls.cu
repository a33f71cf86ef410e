// One session of several, and the time of a call as a session grows. Uses the libcuda.so.1 that the loader finds.
//   session_calls calls SECONDS     says "ready", waits for a line, then launches and reads four bytes for so long
//   session_calls idle              says "ready" and sleeps until its input ends
//   session_calls growth KIND N...  us a call with so many of KIND there: events, modules or allocations
// Results are one JSON object on the last line.
#include <cuda.h>
#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "../examples/check.hpp"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTurnsAtOnce = 10;
constexpr int kMeasured = 301;
constexpr size_t kAllocationBytes = 4096;

__global__ void count(unsigned* value) { *value += 1; }

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void ready() {
  std::printf("ready\n");
  std::fflush(stdout);
}

// Waits for a line, or the end of the input.
void wait_for_line() {
  char letter = 0;
  while (::read(STDIN_FILENO, &letter, 1) == 1 && letter != '\n') {}
}

int calls(double seconds) {
  auto begun = Clock::now();
  unsigned *device, value = 0;
  CHECK_RUNTIME(cudaMalloc(&device, sizeof value));
  CHECK_RUNTIME(cudaMemset(device, 0, sizeof value));
  count<<<1, 1>>>(device);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  double start_ms = 1e3 * seconds_since(begun);
  ready();
  wait_for_line();
  unsigned turns = 0;
  auto start = Clock::now();
  while (seconds_since(start) < seconds) {
    for (int i = 0; i < kTurnsAtOnce; ++i, ++turns) {
      count<<<1, 1>>>(device);
      CHECK_RUNTIME(cudaMemcpy(&value, device, sizeof value, cudaMemcpyDeviceToHost));
    }
  }
  double took = seconds_since(start);
  if (value != turns + 1) {
    std::fprintf(stderr, "the device has counted %u turns, not %u\n", value, turns + 1);
    return 1;
  }
  std::printf("{\"turns\": %u, \"seconds\": %.4f, \"start_ms\": %.2f}\n", turns, took, start_ms);
  return 0;
}

int idle() {
  void* device;
  CHECK_RUNTIME(cudaMalloc(&device, 1 << 20));
  CHECK_RUNTIME(cudaMemset(device, 0, 1 << 20));
  CHECK_RUNTIME(cudaDeviceSynchronize());
  ready();
  wait_for_line();
  CHECK_RUNTIME(cudaFree(device));
  std::printf("{}\n");
  return 0;
}

double median_us(const std::function<void()>& body) {
  std::vector<double> times;
  for (int i = 0; i < kMeasured; ++i) {
    auto start = Clock::now();
    body();
    times.push_back(1e6 * seconds_since(start));
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

const char kModule[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry nothing()\n{\n  ret;\n}\n";

// Objects of one kind, with the most frequent calls for creating and using them.
struct Growing {
  virtual ~Growing() = default;
  virtual void make() = 0;
  virtual void unmake() = 0;
  virtual void use(size_t index) = 0;
  virtual size_t there() const = 0;
};

struct Events : Growing {
  std::vector<cudaEvent_t> all;
  void make() override {
    all.emplace_back();
    CHECK_RUNTIME(cudaEventCreateWithFlags(&all.back(), cudaEventDisableTiming));
  }
  void unmake() override {
    CHECK_RUNTIME(cudaEventDestroy(all.back()));
    all.pop_back();
  }
  void use(size_t index) override { CHECK_RUNTIME(cudaEventRecord(all[index], nullptr)); }
  size_t there() const override { return all.size(); }
};

struct Allocations : Growing {
  std::vector<char*> all;
  void make() override {
    all.emplace_back();
    CHECK_RUNTIME(cudaMalloc(&all.back(), kAllocationBytes));
  }
  void unmake() override {
    CHECK_RUNTIME(cudaFree(all.back()));
    all.pop_back();
  }
  void use(size_t index) override { CHECK_RUNTIME(cudaMemsetAsync(all[index], 0, 64, nullptr)); }
  size_t there() const override { return all.size(); }
};

struct Modules : Growing {
  std::vector<CUmodule> all;
  std::vector<CUfunction> functions;
  void make() override {
    all.emplace_back();
    functions.emplace_back();
    CHECK_DRIVER(cuModuleLoadData(&all.back(), kModule));
    CHECK_DRIVER(cuModuleGetFunction(&functions.back(), all.back(), "nothing"));
  }
  void unmake() override {
    CHECK_DRIVER(cuModuleUnload(all.back()));
    all.pop_back();
    functions.pop_back();
  }
  void use(size_t index) override {
    CHECK_DRIVER(cuLaunchKernel(functions[index], 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  }
  size_t there() const override { return all.size(); }
};

int growth(Growing& objects, int count, char** sizes) {
  CHECK_RUNTIME(cudaFree(nullptr));
  std::printf("{");
  for (int i = 0; i < count; ++i) {
    const size_t wanted = std::strtoull(sizes[i], nullptr, 10);
    if (wanted == 0) return 2;
    while (objects.there() < wanted) objects.make();
    CHECK_RUNTIME(cudaDeviceSynchronize());
    uint64_t seed = 1;
    const double make_us = median_us([&] {
      objects.make();
      objects.unmake();
    });
    CHECK_RUNTIME(cudaDeviceSynchronize());
    // Chooses a random object, so that no cache contains it.
    const double use_us = median_us([&] {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      objects.use(size_t(seed >> 33) % wanted);
    });
    const double synchronise_us = median_us([&] { CHECK_RUNTIME(cudaDeviceSynchronize()); });
    std::printf("%s\"%zu\": {\"make_us\": %.3f, \"use_us\": %.3f, \"synchronise_us\": %.3f}", i ? ", " : "", wanted,
                make_us, use_us, synchronise_us);
  }
  std::printf("}\n");
  return 0;
}

int growth_of(const std::string& kind, int count, char** sizes) {
  Events events;
  Allocations allocations;
  Modules modules;
  struct {
    const char* name;
    Growing& objects;
  } const kinds[] = {{"events", events}, {"allocations", allocations}, {"modules", modules}};
  for (const auto& row : kinds)
    if (kind == row.name) return growth(row.objects, count, sizes);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  int code = 2;
  if (what == "calls" && argc == 3) code = calls(std::atof(argv[2]));
  if (what == "idle" && argc == 2) code = idle();
  if (what == "growth" && argc > 3) code = growth_of(argv[2], argc - 3, argv + 3);
  if (code == 2)
    std::fprintf(stderr, "usage: session_calls calls SECONDS | idle | growth events|modules|allocations N...\n");
  return code;
}
