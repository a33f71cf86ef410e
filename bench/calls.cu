// Times the most frequent calls of programs, on the libcuda.so.1 that the loader finds: NVIDIA's natively, gpuwire's
// through `gpuwire run`. Prints one JSON object. Every figure is the median over rounds; bench/run runs it natively and
// remotely in turn.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "../examples/check.hpp"
#include "figures.hpp"

__global__ void nothing() {}

namespace {

Figures* g_figures;  // main's

double median_seconds(int rounds, const std::function<void()>& body) { return g_figures->median_seconds(rounds, body); }
void figure(const std::string& name, double value) { g_figures->add(name, value); }

void launches(int count) {
  figure("launch_async_us", 1e6 / count * median_seconds(5, [&] {
                              for (int i = 0; i < count; ++i) nothing<<<1, 32>>>();
                              CHECK_RUNTIME(cudaDeviceSynchronize());
                            }));
  // Measures the time of one launch for its caller while the buffers have room: a burst, without the synchronisation.
  std::vector<double> bursts;
  for (int round = 0; round < 51; ++round) {
    bursts.push_back(seconds_of([] {
      for (int i = 0; i < 200; ++i) nothing<<<1, 32>>>();
    }));
    CHECK_RUNTIME(cudaDeviceSynchronize());
  }
  figure("launch_posted_us", 1e6 / 200 * median(bursts));
}

void launch_and_wait() {
  figure("launch_sync_us", 1e6 * median_seconds(501, [] {
                             nothing<<<1, 32>>>();
                             CHECK_RUNTIME(cudaDeviceSynchronize());
                           }));
}

void small_copies() {
  std::vector<char> host(4096);
  char* device;
  CHECK_RUNTIME(cudaMalloc(&device, host.size()));
  figure("h2d_4k_us", 1e6 * median_seconds(201, [&] {
                        CHECK_RUNTIME(cudaMemcpy(device, host.data(), host.size(), cudaMemcpyHostToDevice));
                      }));
  figure("d2h_4k_us", 1e6 * median_seconds(201, [&] {
                        CHECK_RUNTIME(cudaMemcpy(host.data(), device, host.size(), cudaMemcpyDeviceToHost));
                      }));
  CHECK_RUNTIME(cudaFree(device));
}

void small_step() {
  std::vector<char> host(4096);
  char* device;
  CHECK_RUNTIME(cudaMalloc(&device, host.size()));
  figure("h2d_20_launches_d2h_us",
         1e6 * median_seconds(201, [&] {
           CHECK_RUNTIME(cudaMemcpy(device, host.data(), host.size(), cudaMemcpyHostToDevice));
           for (int i = 0; i < 20; ++i) nothing<<<1, 32>>>();
           CHECK_RUNTIME(cudaMemcpy(host.data(), device, host.size(), cudaMemcpyDeviceToHost));
         }));
  CHECK_RUNTIME(cudaFree(device));
  figure("malloc_1m_us", 1e6 * median_seconds(51, [] {
                           void* memory;
                           CHECK_RUNTIME(cudaMalloc(&memory, 1 << 20));
                           CHECK_RUNTIME(cudaFree(memory));
                         }));
}

void allocations() {
  constexpr int kRounds = 501, kCount = 200;
  void* memory = nullptr;
  std::vector<double> mallocs, frees;
  for (int round = 0; round < kRounds; ++round) {
    mallocs.push_back(seconds_of([&] { CHECK_RUNTIME(cudaMalloc(&memory, 1 << 20)); }));
    frees.push_back(seconds_of([&] { CHECK_RUNTIME(cudaFree(memory)); }));
  }
  figure("malloc_alone_1m_us", 1e6 * median(mallocs));
  figure("free_alone_1m_us", 1e6 * median(frees));
  cudaStream_t stream;
  CHECK_RUNTIME(cudaStreamCreate(&stream));
  // Between two bursts the stream catches up, so that memory that was freed in its order is available again.
  std::vector<double> bursts;
  for (int round = 0; round < 51; ++round) {
    bursts.push_back(seconds_of([&] {
      for (int i = 0; i < kCount; ++i) {
        CHECK_RUNTIME(cudaMallocAsync(&memory, 1 << 20, stream));
        CHECK_RUNTIME(cudaFreeAsync(memory, stream));
      }
    }));
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
  }
  figure("malloc_async_1m_us", 1e6 / kCount * median(bursts));
  CHECK_RUNTIME(cudaStreamDestroy(stream));
}

void queries() {
  cudaStream_t stream;
  cudaEvent_t event;
  CHECK_RUNTIME(cudaStreamCreate(&stream));
  CHECK_RUNTIME(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  nothing<<<1, 32, 0, stream>>>();
  CHECK_RUNTIME(cudaEventRecord(event, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  constexpr int kCount = 1000;
  figure("stream_query_us", 1e6 / kCount * median_seconds(21, [&] {
                              for (int i = 0; i < kCount; ++i) (void)cudaStreamQuery(stream);
                            }));
  figure("event_query_us", 1e6 / kCount * median_seconds(21, [&] {
                             for (int i = 0; i < kCount; ++i) (void)cudaEventQuery(event);
                           }));
  figure("event_record_us", 1e6 / 200 * median_seconds(51, [&] {
                              for (int i = 0; i < 200; ++i) (void)cudaEventRecord(event, stream);
                            }));
  figure("event_create_destroy_us", 1e6 / 200 * median_seconds(51, [] {
                                      for (int i = 0; i < 200; ++i) {
                                        cudaEvent_t one;
                                        CHECK_RUNTIME(cudaEventCreateWithFlags(&one, cudaEventDisableTiming));
                                        CHECK_RUNTIME(cudaEventDestroy(one));
                                      }
                                    }));
  // Measures the time from a launch to the first query that finds it done, by polling.
  figure("launch_poll_us", 1e6 * median_seconds(201, [&] {
                             nothing<<<1, 32, 0, stream>>>();
                             CHECK_RUNTIME(cudaEventRecord(event, stream));
                             while (cudaEventQuery(event) == cudaErrorNotReady) {}
                           }));
  CHECK_RUNTIME(cudaEventDestroy(event));
  CHECK_RUNTIME(cudaStreamDestroy(stream));
}

void memory_questions() {
  const auto ask = [] {
    size_t free_bytes, total_bytes;
    CHECK_RUNTIME(cudaMemGetInfo(&free_bytes, &total_bytes));
  };
  figure("mem_get_info_us", 1e6 * median_seconds(201, ask));
  // Runs after allocations of both kinds and copies, like a query of a program that decides how much memory to
  // allocate.
  cudaStream_t stream;
  CHECK_RUNTIME(cudaStreamCreate(&stream));
  std::vector<char> host(64 << 10, 1);
  void *kept = nullptr, *passing = nullptr;
  const auto work = [&] {
    if (kept) CHECK_RUNTIME(cudaFree(kept));
    CHECK_RUNTIME(cudaMalloc(&kept, 1 << 20));
    CHECK_RUNTIME(cudaMallocAsync(&passing, 1 << 20, stream));
    CHECK_RUNTIME(cudaMemcpyAsync(passing, host.data(), host.size(), cudaMemcpyHostToDevice, stream));
    CHECK_RUNTIME(cudaMemcpy(kept, host.data(), host.size(), cudaMemcpyHostToDevice));
    CHECK_RUNTIME(cudaFreeAsync(passing, stream));
  };
  figure("mem_get_info_busy_us", 1e6 * g_figures->median_seconds(101, work, ask));
  CHECK_RUNTIME(cudaFree(kept));
  CHECK_RUNTIME(cudaStreamDestroy(stream));
}

void pinned() {
  constexpr size_t kSmall = 4096, kLarge = size_t(64) << 20;
  char *host, *device;
  CHECK_RUNTIME(cudaMallocHost(&host, kSmall));
  CHECK_RUNTIME(cudaMalloc(&device, kSmall));
  figure("h2d_4k_pinned_us",
         1e6 * median_seconds(201, [&] { CHECK_RUNTIME(cudaMemcpy(device, host, kSmall, cudaMemcpyHostToDevice)); }));
  figure("d2h_4k_pinned_us",
         1e6 * median_seconds(201, [&] { CHECK_RUNTIME(cudaMemcpy(host, device, kSmall, cudaMemcpyDeviceToHost)); }));
  CHECK_RUNTIME(cudaFree(device));
  CHECK_RUNTIME(cudaFreeHost(host));
  figure("malloc_host_64m_ms", 1e3 * median_seconds(5, [&] {
                                 CHECK_RUNTIME(cudaMallocHost(&host, kLarge));
                                 CHECK_RUNTIME(cudaFreeHost(host));
                               }));
}

// `size`: as in the figures' names.
void copies(const std::string& size, size_t bytes, int rounds) {
  std::vector<char> pageable(bytes, 1);
  char *pinned, *device;
  CHECK_RUNTIME(cudaMallocHost(&pinned, bytes));
  std::memset(pinned, 1, bytes);
  CHECK_RUNTIME(cudaMalloc(&device, bytes));
  auto rate = [&](const std::string& name, void* to, const void* from, cudaMemcpyKind kind) {
    figure(name,
           double(bytes) / 1e9 / median_seconds(rounds, [&] { CHECK_RUNTIME(cudaMemcpy(to, from, bytes, kind)); }));
  };
  rate("h2d_" + size + "_gb_s", device, pageable.data(), cudaMemcpyHostToDevice);
  rate("d2h_" + size + "_gb_s", pageable.data(), device, cudaMemcpyDeviceToHost);
  rate("h2d_" + size + "_pinned_gb_s", device, pinned, cudaMemcpyHostToDevice);
  rate("d2h_" + size + "_pinned_gb_s", pinned, device, cudaMemcpyDeviceToHost);
  CHECK_RUNTIME(cudaFree(device));
  CHECK_RUNTIME(cudaFreeHost(pinned));
}

}  // namespace

int main(int argc, char** argv) {
  // --small: fewer launches and copies, for the software device, on which a launch takes longer and copies are plain
  // memory copies. --short: the most frequent calls that wait, in about a second.
  const bool small = has_option(argc, argv, "--small"), brief = has_option(argc, argv, "--short");
  Figures figures;
  figures.set_pace(pace_of(argc, argv));
  g_figures = &figures;
  CHECK_RUNTIME(cudaFree(nullptr));
  if (!brief) launches(small ? 1000 : 10000);
  launch_and_wait();
  if (!brief) small_step();
  small_copies();
  if (!brief) allocations();
  queries();
  memory_questions();
  if (brief) return 0;
  pinned();
  copies("64m", size_t(64) << 20, small ? 3 : 11);
  if (!small) copies("1g", size_t(1) << 30, 5);
  return 0;
}
