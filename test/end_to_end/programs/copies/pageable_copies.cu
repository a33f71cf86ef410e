// Large copies of pageable memory of random sizes from and to random places, by several threads, among kernels, frees
// and children of fork(). The source is changed as soon as a copy has returned. Arguments: a seed; or "standing":
// copies into a stream that is blocked until they have returned, more than a session buffers. Ends with PASSED.
#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "../../../../examples/check.hpp"

constexpr size_t kBytes = 12u << 20;
constexpr size_t kStride = 4099;  // of the bytes that kernels touch

__global__ void flip(unsigned char* data, size_t bytes, unsigned char by) {
  size_t i = (blockIdx.x * size_t(blockDim.x) + threadIdx.x) * kStride;
  if (i < bytes) data[i] ^= by;
}

static bool copies(unsigned seed) {
  constexpr int kRounds = 10;
  std::mt19937 random(seed);
  std::vector<unsigned char> base(kBytes);
  for (unsigned char& byte : base) byte = static_cast<unsigned char>(random());
  std::vector<unsigned char> source(kBytes), expected(kBytes), back(kBytes);
  cudaStream_t stream = nullptr;
  if (seed % 2 == 1) CHECK_RUNTIME(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  unsigned char* device = nullptr;
  CHECK_RUNTIME(cudaMalloc(&device, kBytes));
  for (int round = 0; round < kRounds; ++round) {
    const size_t bytes = 1 + random() % (round % 3 == 2 ? 400'000 : kBytes);
    const size_t from = random() % (kBytes - bytes + 1), to = random() % (kBytes - bytes + 1);
    const unsigned char by = static_cast<unsigned char>(random());
    std::memcpy(&source[from], &base[from], bytes);
    if (round % 2 == 0) {
      CHECK_RUNTIME(cudaMemcpyAsync(device + to, &source[from], bytes, cudaMemcpyHostToDevice, stream));
    } else {
      CHECK_RUNTIME(cudaStreamSynchronize(stream));
      CHECK_RUNTIME(cudaMemcpy(device + to, &source[from], bytes, cudaMemcpyHostToDevice));
    }
    std::memset(&source[from], 0x5a, bytes);
    const unsigned blocks = unsigned((bytes / kStride + 256) / 256);
    flip<<<blocks, 256, 0, stream>>>(device + to, bytes, by);
    CHECK_RUNTIME(cudaGetLastError());
    for (size_t i = 0; i < bytes; ++i) expected[i] = base[from + i];
    for (size_t i = 0; i < bytes; i += kStride) expected[i] ^= by;
    if (round % 4 < 2) {
      CHECK_RUNTIME(cudaMemcpyAsync(&back[from], device + to, bytes, cudaMemcpyDeviceToHost, stream));
      CHECK_RUNTIME(cudaStreamSynchronize(stream));
    } else {
      CHECK_RUNTIME(cudaStreamSynchronize(stream));
      CHECK_RUNTIME(cudaMemcpy(&back[from], device + to, bytes, cudaMemcpyDeviceToHost));
    }
    if (std::memcmp(&back[from], expected.data(), bytes) != 0) {
      std::printf("seed %u, round %d: %zu bytes from %zu to %zu came back changed\n", seed, round, bytes, from, to);
      return false;
    }
    if (round % 3 == 1) {
      // Freed while a copy may be on its way to it.
      CHECK_RUNTIME(cudaMemcpyAsync(device, base.data(), kBytes, cudaMemcpyHostToDevice, stream));
      CHECK_RUNTIME(cudaFree(device));
      CHECK_RUNTIME(cudaMalloc(&device, kBytes));
    }
  }
  CHECK_RUNTIME(cudaFree(device));
  if (stream) CHECK_RUNTIME(cudaStreamDestroy(stream));
  return true;
}

static bool children() {
  for (int i = 0; i < 3; ++i) {
    const pid_t child = fork();
    if (child == 0) _exit(0);
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) return false;
  }
  return true;
}

static std::atomic<bool> g_go{false};

// More than the bound of buffered copies.
static bool standing() {
  constexpr size_t kPart = 20u << 20, kParts = 5;
  std::vector<unsigned char> source(kPart), back(kPart);
  cudaStream_t stream;
  unsigned char* device = nullptr;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK_RUNTIME(cudaMalloc(&device, kPart * kParts));
  CHECK_RUNTIME(cudaLaunchHostFunc(
      stream,
      [](void*) {
        while (!g_go.load()) std::this_thread::yield();
      },
      nullptr));
  for (size_t part = 0; part < kParts; ++part) {
    for (size_t i = 0; i < kPart; ++i) source[i] = static_cast<unsigned char>(i * 7 + part + (i >> 12));
    CHECK_RUNTIME(cudaMemcpyAsync(device + part * kPart, source.data(), kPart, cudaMemcpyHostToDevice, stream));
  }
  g_go.store(true);
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  for (size_t part = 0; part < kParts; ++part) {
    CHECK_RUNTIME(cudaMemcpy(back.data(), device + part * kPart, kPart, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < kPart; ++i) {
      if (back[i] != static_cast<unsigned char>(i * 7 + part + (i >> 12))) return false;
    }
  }
  CHECK_RUNTIME(cudaFree(device));
  CHECK_RUNTIME(cudaStreamDestroy(stream));
  return true;
}

int main(int argc, char** argv) {
  bool right = true;
  if (argc > 1 && std::strcmp(argv[1], "standing") == 0) {
    right = standing();
  } else {
    constexpr unsigned kThreads = 4;
    const unsigned seed = argc > 1 ? unsigned(std::strtoul(argv[1], nullptr, 10)) : 1;
    CHECK_RUNTIME(cudaFree(nullptr));
    std::atomic<bool> all{true};
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        if (!copies(seed * kThreads + i)) all = false;
      });
    }
    if (!children()) all = false;
    for (std::thread& thread : threads) thread.join();
    right = all;
  }
  std::printf("%s\n", right ? "PASSED" : "FAILED");
  return right ? 0 : 1;
}
