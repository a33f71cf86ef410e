// Times copies by size, on the libcuda.so.1 that the loader finds: each size in each direction, from and to pageable
// and pinned memory, blocking and asynchronous. Prints one JSON object of microseconds; bench/run runs it natively and
// remotely in turn. --short: in about two seconds; --quick: a few rounds, to try it out; --small: without the largest.
//
// A non-blocking stream exists all the time, as in most programs, because it influences when a copy may return.
#include <cuda_runtime.h>

#include <cstring>
#include <string>
#include <vector>

#include "../examples/check.hpp"
#include "figures.hpp"

namespace {

struct Size {
  const char* name;
  size_t bytes;
};
constexpr size_t kKiB = 1 << 10, kMiB = 1 << 20;
// As bench/goals.py has them.
constexpr Size kSizes[] = {{"4k", 4 * kKiB},     {"64k", 64 * kKiB},   {"256k", 256 * kKiB},
                           {"512k", 512 * kKiB}, {"768k", 768 * kKiB}, {"1m", kMiB},
                           {"2m", 2 * kMiB},     {"4m", 4 * kMiB},     {"16m", 16 * kMiB}};
constexpr size_t kSmallBytesMax = 2 * kMiB;
constexpr int kRounds = 15;

}  // namespace

int main(int argc, char** argv) {
  const bool small = has_option(argc, argv, "--small");
  Figures figures;
  figures.set_pace(pace_of(argc, argv));
  cudaStream_t stream;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const size_t bytes_max = kSizes[std::size(kSizes) - 1].bytes;
  std::vector<char> pageable(bytes_max, 1);
  char *pinned, *device;
  CHECK_RUNTIME(cudaMallocHost(&pinned, bytes_max));
  std::memset(pinned, 1, bytes_max);
  CHECK_RUNTIME(cudaMalloc(&device, bytes_max));
  for (const Size& size : kSizes) {
    if (small && size.bytes > kSmallBytesMax) continue;
    for (const bool to_device : {true, false}) {
      for (const bool is_pinned : {false, true}) {
        char* host = is_pinned ? pinned : pageable.data();
        char *target = to_device ? device : host, *source = to_device ? host : device;
        const auto kind = to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
        const std::string name = std::string(to_device ? "h2d_" : "d2h_") + size.name + (is_pinned ? "_pinned" : "");
        figures.add(name + "_blocking_us", 1e6 * figures.median_seconds(kRounds, [&] {
          CHECK_RUNTIME(cudaMemcpy(target, source, size.bytes, kind));
        }));
        // Waits, so that the next figure does not include the copy's remaining work on the server.
        CHECK_RUNTIME(cudaDeviceSynchronize());
        figures.add(name + "_async_us", 1e6 * figures.median_seconds(kRounds, [&] {
          CHECK_RUNTIME(cudaMemcpyAsync(target, source, size.bytes, kind, stream));
          CHECK_RUNTIME(cudaStreamSynchronize(stream));
        }));
      }
    }
  }
  CHECK_RUNTIME(cudaFree(device));
  CHECK_RUNTIME(cudaFreeHost(pinned));
  CHECK_RUNTIME(cudaStreamDestroy(stream));
  return 0;
}
