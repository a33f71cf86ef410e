// Measures typical operations of a program over a network, as one JSON object: `network_calls copies|load|small [...]`.
// Uses the libcuda.so.1 that the loader finds; bench/network runs it natively and remotely in turn.
//   copies BYTES...     blocking copies of these sizes, pageable and pinned, each way: us a copy
//   load BYTES FILE N   a file of weights to the device, N times over, each time freed again: seconds a load
//   small CALLS         launch, small copy out and synchronisation, in a loop: us a turn
#include <cuda_runtime.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../examples/check.hpp"

namespace {

using Clock = std::chrono::steady_clock;

// The program copies a size until it reaches one of these limits.
constexpr double kCopySeconds = 0.2;
constexpr int kCopiesMax = 200, kCopiesMin = 5;
// Loads weights like PyTorch, tensor by tensor.
constexpr size_t kTensorBytes = size_t(16) << 20;

__global__ void count(unsigned* value) { *value += 1; }

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The copies follow each other, with one synchronisation at the end, because a copy may return before its data have
// arrived.
double copy_us(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  CHECK_RUNTIME(cudaMemcpy(to, from, bytes, kind));  // opens the lanes that such sizes use
  CHECK_RUNTIME(cudaDeviceSynchronize());
  int done = 0;
  auto start = Clock::now();
  while (done < kCopiesMin || (seconds_since(start) < kCopySeconds && done < kCopiesMax)) {
    CHECK_RUNTIME(cudaMemcpy(to, from, bytes, kind));
    ++done;
  }
  CHECK_RUNTIME(cudaDeviceSynchronize());
  return 1e6 * seconds_since(start) / done;
}

int copies(int count, char** sizes) {
  std::printf("{");
  for (int i = 0; i < count; ++i) {
    const size_t bytes = std::strtoull(sizes[i], nullptr, 10);
    if (bytes == 0) return 2;
    std::vector<char> pageable(bytes, 1);
    char *pinned, *device;
    CHECK_RUNTIME(cudaMallocHost(&pinned, bytes));
    std::memset(pinned, 1, bytes);
    CHECK_RUNTIME(cudaMalloc(&device, bytes));
    std::printf("%s\"%zu\": {\"h2d_us\": %.2f, ", i ? ", " : "", bytes,
                copy_us(device, pageable.data(), bytes, cudaMemcpyHostToDevice));
    std::printf("\"d2h_us\": %.2f, ", copy_us(pageable.data(), device, bytes, cudaMemcpyDeviceToHost));
    std::printf("\"h2d_pinned_us\": %.2f, ", copy_us(device, pinned, bytes, cudaMemcpyHostToDevice));
    std::printf("\"d2h_pinned_us\": %.2f}", copy_us(pinned, device, bytes, cudaMemcpyDeviceToHost));
    CHECK_RUNTIME(cudaFree(device));
    CHECK_RUNTIME(cudaFreeHost(pinned));
  }
  std::printf("}\n");
  return 0;
}

// Fills the memory with bytes that neither compression nor a table of equal pages can reduce.
bool write_weights(const char* path, size_t bytes) {
  int file = ::open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0 || ::ftruncate(file, off_t(bytes)) != 0) return false;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (memory == MAP_FAILED) return false;
  auto* words = static_cast<uint64_t*>(memory);
  uint64_t state = 0x9E3779B97F4A7C15u;
  for (size_t i = 0; i < bytes / sizeof(uint64_t); ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    words[i] = state;
  }
  ::munmap(memory, bytes);
  return true;
}

int load(size_t bytes, const char* path, int times) {
  if (bytes < sizeof(uint64_t) || times < 1) return 2;
  if (::access(path, R_OK) != 0 && !write_weights(path, bytes)) {
    std::perror(path);
    return 1;
  }
  int file = ::open(path, O_RDONLY | O_CLOEXEC);
  const void* memory = file < 0 ? MAP_FAILED : ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
  if (memory == MAP_FAILED) {
    std::perror(path);
    return 1;
  }
  const auto* weights = static_cast<const char*>(memory);
  CHECK_RUNTIME(cudaFree(nullptr));
  std::printf("{\"load_s\": [");
  for (int turn = 0; turn < times; ++turn) {
    auto start = Clock::now();
    std::vector<char*> tensors;
    for (size_t offset = 0; offset < bytes; offset += kTensorBytes) {
      const size_t piece = std::min(kTensorBytes, bytes - offset);
      tensors.push_back(nullptr);
      CHECK_RUNTIME(cudaMalloc(&tensors.back(), piece));
      CHECK_RUNTIME(cudaMemcpy(tensors.back(), weights + offset, piece, cudaMemcpyHostToDevice));
    }
    CHECK_RUNTIME(cudaDeviceSynchronize());
    std::printf("%s%.4f", turn ? ", " : "", seconds_since(start));
    // Checks the last word, so that the time covers the whole copy.
    uint64_t last = 0, expected = 0;
    const size_t tail = (bytes - 1) % kTensorBytes + 1;
    std::memcpy(&expected, weights + bytes - sizeof last, sizeof last);
    CHECK_RUNTIME(cudaMemcpy(&last, tensors.back() + tail - sizeof last, sizeof last, cudaMemcpyDeviceToHost));
    if (last != expected) {
      std::fprintf(stderr, "the device has other weights than the file\n");
      return 1;
    }
    for (char* tensor : tensors) CHECK_RUNTIME(cudaFree(tensor));
  }
  std::printf("]}\n");
  return 0;
}

int small(int turns) {
  if (turns < 1) return 2;
  unsigned *device, value = 0;
  CHECK_RUNTIME(cudaMalloc(&device, sizeof value));
  CHECK_RUNTIME(cudaMemset(device, 0, sizeof value));
  count<<<1, 1>>>(device);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  auto start = Clock::now();
  for (int i = 0; i < turns; ++i) {
    count<<<1, 1>>>(device);
    CHECK_RUNTIME(cudaMemcpy(&value, device, sizeof value, cudaMemcpyDeviceToHost));
  }
  double us = 1e6 * seconds_since(start) / turns;
  if (value != unsigned(turns) + 1) {
    std::fprintf(stderr, "the device has counted %u turns, not %d\n", value, turns + 1);
    return 1;
  }
  std::printf("{\"turn_us\": %.3f}\n", us);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  int code = 2;
  if (what == "copies" && argc > 2) code = copies(argc - 2, argv + 2);
  if (what == "load" && argc == 5) code = load(std::strtoull(argv[2], nullptr, 10), argv[3], std::atoi(argv[4]));
  if (what == "small" && argc == 3) code = small(std::atoi(argv[2]));
  if (code == 2) std::fprintf(stderr, "usage: network_calls copies BYTES... | load BYTES FILE TIMES | small TURNS\n");
  return code;
}
