// The processes of bench/sharing/faults: a tenant that fails in a given way, a neighbour that works and checks its
// results, and a process that only queries the free device memory, once or until a given amount is free.
#include <cuda_runtime.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Any CUDA error before the intended fault ends the process, because the fault cannot be tested then.
void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "faults: %s: %s\n", what, cudaGetErrorName(error));
  std::exit(4);
}

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

}  // namespace

__global__ void fill(unsigned* words, size_t count) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x)
    words[i] = unsigned(i);
}
__global__ void write_to(unsigned* place) { *place = 1; }
__global__ void assert_equal(int value, int other) { assert(value == other); }
__global__ void trap() { asm volatile("trap;"); }
__global__ void endless(volatile unsigned* words) {
  while (words[0] != 0xffffffffu) {}
}
__global__ void step(unsigned* data, unsigned count, unsigned round) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] = data[i] * 3 + round;
}

namespace {

// --- the tenant that fails -----------------------------------------------------------------------------------------

struct Tenant {
  unsigned* words = nullptr;
  size_t bytes = 0;
};

void await_kill() {
  say("struck");
  for (;;) pause();
}

// Returns the error that a kernel leaves; without an error the kernel has not failed.
int after_kernel() {
  cudaError_t error = cudaDeviceSynchronize();
  say(std::string("struck ") + cudaGetErrorName(error));
  return error == cudaSuccess ? 5 : 3;
}

int clean_exit(Tenant& tenant) {
  must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  must(cudaFree(tenant.words), "cudaFree");
  say("struck");
  return 0;
}
int killed_idle(Tenant&) {
  must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  await_kill();
  return 0;
}
int illegal_address(Tenant&) {
  write_to<<<1, 1>>>(reinterpret_cast<unsigned*>(0x10000));
  return after_kernel();
}
int misaligned_address(Tenant& tenant) {
  write_to<<<1, 1>>>(reinterpret_cast<unsigned*>(reinterpret_cast<char*>(tenant.words) + 2));
  return after_kernel();
}
int device_assert(Tenant&) {
  assert_equal<<<1, 1>>>(1, 2);
  return after_kernel();
}
int device_trap(Tenant&) {
  trap<<<1, 1>>>();
  return after_kernel();
}
int killed_endless(Tenant& tenant) {
  endless<<<1, 32>>>(tenant.words);
  // Asking sends what was launched.
  if (cudaStreamQuery(nullptr) != cudaErrorNotReady) return 5;
  await_kill();
  return 0;
}
int killed_copying(Tenant& tenant) {
  std::vector<char> host(std::min<size_t>(tenant.bytes, size_t(32) << 20));
  for (bool said = false;;) {
    must(cudaMemcpy(host.data(), tenant.words, host.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    must(cudaMemcpy(tenant.words, host.data(), host.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
    if (!said) say("struck");
    said = true;
  }
}
int exhausted(Tenant&) {
  size_t taken = 0;
  for (size_t piece = size_t(1) << 30; piece >= size_t(1) << 20; piece /= 2) {
    for (void* memory = nullptr; cudaMalloc(&memory, piece) == cudaSuccess;) taken += piece;
    cudaGetLastError();
  }
  say("struck " + std::to_string(taken >> 20) + " MiB");
  return 0;
}

constexpr struct {
  const char* name;
  int (*strike)(Tenant&);
} kFaults[] = {
    {"clean_exit", clean_exit},         {"killed_idle", killed_idle},       {"illegal_address", illegal_address},
    {"misaligned", misaligned_address}, {"device_assert", device_assert},   {"trap", device_trap},
    {"killed_endless", killed_endless}, {"killed_copying", killed_copying}, {"exhausted", exhausted},
};

int tenant(const char* fault, size_t bytes) {
  for (const auto& one : kFaults) {
    if (std::strcmp(one.name, fault) != 0) continue;
    Tenant tenant{nullptr, bytes};
    must(cudaMalloc(&tenant.words, bytes), "cudaMalloc");
    fill<<<64, 256>>>(tenant.words, bytes / sizeof(unsigned));
    must(cudaDeviceSynchronize(), "fill");
    say("ready");
    char line[16];
    if (!std::fgets(line, sizeof line, stdin)) return 1;
    int code = one.strike(tenant);
    std::fflush(stdout);
    // Frees nothing; the libraries' exit handlers run.
    return code;
  }
  std::fprintf(stderr, "faults: no fault '%s'\n", fault);
  return 2;
}

// --- its neighbour -------------------------------------------------------------------------------------------------

struct Neighbour {
  static constexpr unsigned kWords = 64 * 1024;
  unsigned* device = nullptr;
  std::vector<unsigned> expected = std::vector<unsigned>(kWords), got = std::vector<unsigned>(kWords);
  unsigned round = 0;
  cudaError_t error = cudaSuccess;
  // Since the last report.
  unsigned rounds = 0, wrong = 0;
  double longest_gap = 0, last = now();

  void start() {
    for (unsigned i = 0; i < kWords; ++i) expected[i] = i;
    must(cudaMalloc(&device, kWords * sizeof(unsigned)), "cudaMalloc");
    must(cudaMemcpy(device, expected.data(), kWords * sizeof(unsigned), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  void work() {
    step<<<(kWords + 255) / 256, 256>>>(device, kWords, round);
    for (unsigned& word : expected) word = word * 3 + round;
    ++round;
    error = cudaGetLastError();
    if (!error) error = cudaMemcpy(got.data(), device, kWords * sizeof(unsigned), cudaMemcpyDeviceToHost);
    if (error) return;
    if (got != expected) {
      ++wrong;
      error = cudaMemcpy(device, expected.data(), kWords * sizeof(unsigned), cudaMemcpyHostToDevice);
    }
    double at = now();
    longest_gap = std::max(longest_gap, at - last);
    last = at;
    ++rounds;
  }
  void report() {
    char line[200];
    std::snprintf(line, sizeof line, "{\"rounds\": %u, \"wrong\": %u, \"longest_gap_ms\": %.3f, \"error\": \"%s\"}",
                  rounds, wrong, longest_gap * 1e3, error ? cudaGetErrorName(error) : "");
    say(line);
    rounds = wrong = 0;
    longest_gap = 0;
  }
};

// Works until its standard input ends; answers each line with the events since the last one.
int neighbour() {
  Neighbour neighbour;
  neighbour.start();
  neighbour.work();
  must(neighbour.error, "the first round");
  say("ready");
  neighbour.last = now();
  for (;;) {
    if (!neighbour.error) neighbour.work();
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (poll(&input, 1, neighbour.error ? -1 : 0) == 0) continue;
    char byte;
    if (read(STDIN_FILENO, &byte, 1) <= 0) return neighbour.error ? 3 : 0;
    if (byte == '\n') neighbour.report();
  }
}

// --- the observer of the memory
// ---------------------------------------------------------------------------------------

size_t tell_free_memory() {
  size_t free_bytes = 0, total = 0;
  must(cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo");
  char line[120];
  std::snprintf(line, sizeof line, "{\"free\": %zu, \"total\": %zu, \"at\": %.6f}", free_bytes, total, now());
  say(line);
  return free_bytes;
}

size_t free_memory() {
  size_t free_bytes = 0, total = 0;
  must(cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo");
  return free_bytes;
}

// Each line of standard input contains a number of bytes and of seconds; the answer comes when so many bytes are free,
// or after this time.
int watch_memory() {
  free_memory();
  say("ready");
  for (char line[64]; std::fgets(line, sizeof line, stdin);) {
    size_t wanted = 0;
    double seconds = 0;
    if (std::sscanf(line, "%zu %lf", &wanted, &seconds) != 2) return 2;
    for (double until = now() + seconds; free_memory() < wanted && now() < until;) usleep(1000);
    tell_free_memory();
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const char* role = argc > 1 ? argv[1] : "";
  if (!std::strcmp(role, "tenant") && argc == 4) return tenant(argv[2], size_t(std::atoll(argv[3])) << 20);
  if (!std::strcmp(role, "neighbour")) return neighbour();
  if (!std::strcmp(role, "free")) return tell_free_memory() == 0;
  if (!std::strcmp(role, "watch")) return watch_memory();
  std::fprintf(stderr, "usage: faults tenant FAULT MIB | neighbour | free | watch\n");
  return 2;
}
