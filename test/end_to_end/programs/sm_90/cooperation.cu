// Threads that work together: barriers that count arrivals, pipelines of asynchronous copies, groups, whole grids, and
// clusters that reach each other's shared memory.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cuda/barrier>
#include <cuda/pipeline>

#include "../../../support/cuda_check.hpp"

namespace cg = cooperative_groups;

#define SAME(is, should)                                                                                               \
  do {                                                                                                                 \
    long long is_ = (is), should_ = (should);                                                                          \
    if (is_ != should_) std::printf("line %d: %s: %lld instead of %lld\n", __LINE__, #is, is_, should_), std::exit(1); \
  } while (0)

constexpr int kThreads = 64;

__global__ void barriers(int* out, const int4* in) {
  __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
  __shared__ int4 words[kThreads];
  if (threadIdx.x == 0) init(&barrier, blockDim.x);
  __syncthreads();
  cuda::memcpy_async(cg::this_thread_block(), words, in, cuda::aligned_size_t<16>(sizeof words), barrier);
  barrier.arrive_and_wait();
  out[threadIdx.x] = words[kThreads - 1 - threadIdx.x].x;
  auto token = barrier.arrive();
  barrier.wait(std::move(token));
  // The upper half leaves: from now on the barrier waits for the lower half only.
  if (threadIdx.x >= kThreads / 2) {
    barrier.arrive_and_drop();
    return;
  }
  words[threadIdx.x].y = threadIdx.x;
  barrier.arrive_and_wait();
  barrier.arrive_and_wait();
  out[kThreads + threadIdx.x] = words[threadIdx.x ^ 1].y;
}

__global__ void pipelined(int* out, const int* in, int rounds) {
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
  __shared__ int buffer[2][kThreads];
  auto block = cg::this_thread_block();
  auto pipeline = cuda::make_pipeline(block, &state);
  for (int i = 0; i <= rounds; ++i) {
    if (i < rounds) {
      pipeline.producer_acquire();
      cuda::memcpy_async(block, buffer[i % 2], in + i * kThreads, sizeof buffer[0], pipeline);
      pipeline.producer_commit();
    }
    if (i == 0) continue;
    pipeline.consumer_wait();
    out[(i - 1) * kThreads + threadIdx.x] = buffer[(i - 1) % 2][kThreads - 1 - threadIdx.x] + 1;
    pipeline.consumer_release();
  }
}

__global__ void groups(int* out, const int* in) {
  auto block = cg::this_thread_block();
  auto tile = cg::tiled_partition<32>(block);
  int mine = in[threadIdx.x];
  out[threadIdx.x] = cg::reduce(tile, mine, cg::plus<int>());
  out[kThreads + threadIdx.x] = cg::inclusive_scan(tile, mine);
  out[2 * kThreads + threadIdx.x] = cg::exclusive_scan(tile, mine);
  auto alike = cg::labeled_partition(tile, threadIdx.x % 3);
  out[3 * kThreads + threadIdx.x] = cg::reduce(alike, mine, cg::greater<int>()) * 100 + alike.size();
  if (threadIdx.x % 2 == 1) {
    auto odd = cg::coalesced_threads();
    cg::invoke_one(odd, [&] { atomicAdd(&out[4 * kThreads], 1); });
  }
}

__global__ void whole_grid(int* values, int rounds) {
  auto grid = cg::this_grid();
  unsigned i = grid.thread_rank(), count = grid.size();
  for (int round = 0; round < rounds; ++round) {
    int next = values[(i + 1) % count];
    grid.sync();
    values[i] += next;
    grid.sync();
  }
}

__global__ void __cluster_dims__(2, 2, 1) compiled_cluster(int* out) {
  auto cluster = cg::this_cluster();
  __shared__ int mine;
  if (threadIdx.x == 0) mine = cluster.block_rank() * 10;
  cluster.sync();
  int next = (cluster.block_rank() + 1) % cluster.num_blocks();
  int* other = cluster.map_shared_rank(&mine, next);
  atomicAdd(other, 1);
  cluster.sync();
  int* place = out + (blockIdx.y * gridDim.x + blockIdx.x) * 4;
  if (threadIdx.x == 0) {
    place[0] = mine;
    place[1] = *other;
    place[2] = cluster.query_shared_rank(other) * 10 + (cluster.query_shared_rank(&mine) == cluster.block_rank());
    place[3] = cluster.block_index().x + 10 * cluster.block_index().y + 100 * cluster.dim_blocks().x;
  }
  cluster.sync();  // no block ends while others read its memory
}

__global__ void cluster_sums(int* out, int rounds) {
  extern __shared__ int values[];
  auto cluster = cg::this_cluster();
  values[threadIdx.x] = blockIdx.x * blockDim.x + threadIdx.x;
  for (int round = 0; round < rounds; ++round) {
    cluster.barrier_arrive();
    cluster.barrier_wait();
    int sum = 0;
    for (unsigned rank = 0; rank < cluster.num_blocks(); ++rank)
      sum += *cluster.map_shared_rank(&values[threadIdx.x], rank);
    cluster.sync();
    values[threadIdx.x] = sum % 1009;
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = values[threadIdx.x];
}

__global__ void first_kernel(int* out) {
  cudaTriggerProgrammaticLaunchCompletion();
  atomicAdd(out, 1);
}
__global__ void second_kernel(int* out) {
  cudaGridDependencySynchronize();
  if (blockIdx.x == 0 && threadIdx.x == 0) out[1] = out[0];
}

static cudaLaunchConfig_t config(int blocks, int threads, size_t shared, cudaStream_t stream,
                                 cudaLaunchAttribute* attribute) {
  cudaLaunchConfig_t c{};
  c.gridDim = blocks;
  c.blockDim = threads;
  c.dynamicSmemBytes = shared;
  c.stream = stream;
  c.attrs = attribute;
  c.numAttrs = 1;
  return c;
}

static void clusters(int* out, int* host, cudaStream_t stream) {
  compiled_cluster<<<dim3(4, 4), 32, 0, stream>>>(out);
  CHECK_RUNTIME(cudaMemcpyAsync(host, out, 64 * sizeof(int), cudaMemcpyDeviceToHost, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  for (int y = 0; y < 4; ++y) {
    for (int x = 0; x < 4; ++x) {
      const int* place = host + (y * 4 + x) * 4;
      int rank = y % 2 * 2 + x % 2, next = (rank + 1) % 4;
      SAME(place[0], rank * 10 + 32);
      SAME(place[1], next * 10 + 32);
      SAME(place[2], next * 10 + 1);
      SAME(place[3], x % 2 + 10 * (y % 2) + 200);
    }
  }
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = 4;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t c = config(8, kThreads, kThreads * sizeof(int), stream, &attribute);
  int many = 0;
  CHECK_RUNTIME(cudaOccupancyMaxActiveClusters(&many, cluster_sums, &c));
  SAME(many > 0, 1);
  CHECK_RUNTIME(cudaLaunchKernelEx(&c, cluster_sums, out, 3));
  CHECK_RUNTIME(cudaMemcpyAsync(host, out, 8 * kThreads * sizeof(int), cudaMemcpyDeviceToHost, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  for (int cluster = 0; cluster < 2; ++cluster) {
    for (int t = 0; t < kThreads; ++t) {
      int values[4];
      for (int b = 0; b < 4; ++b) values[b] = (cluster * 4 + b) * kThreads + t;
      for (int round = 0; round < 3; ++round) {
        int sum = values[0] + values[1] + values[2] + values[3];
        for (int& value : values) value = sum % 1009;
      }
      for (int b = 0; b < 4; ++b) SAME(host[(cluster * 4 + b) * kThreads + t], values[b]);
    }
  }
}

int main() {
  constexpr int kRounds = 5, kWords = 16 * kThreads;
  int *in, *out, host[kWords], back[kWords];
  cudaStream_t stream;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK_RUNTIME(cudaMalloc(&in, sizeof host));
  CHECK_RUNTIME(cudaMalloc(&out, sizeof host));
  for (int i = 0; i < kWords; ++i) host[i] = i * 7 % 31;
  CHECK_RUNTIME(cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice));
  CHECK_RUNTIME(cudaDeviceSynchronize());  // `stream` does not wait for the NULL stream
  auto fetch = [&] {
    CHECK_RUNTIME(cudaMemcpyAsync(back, out, sizeof back, cudaMemcpyDeviceToHost, stream));
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
  };

  barriers<<<1, kThreads, 0, stream>>>(out, reinterpret_cast<int4*>(in));
  fetch();
  for (int t = 0; t < kThreads; ++t) SAME(back[t], host[(kThreads - 1 - t) * 4]);
  for (int t = 0; t < kThreads / 2; ++t) SAME(back[kThreads + t], t ^ 1);

  pipelined<<<1, kThreads, 0, stream>>>(out, in, kRounds);
  fetch();
  for (int i = 0; i < kRounds * kThreads; ++i)
    SAME(back[i], host[i / kThreads * kThreads + kThreads - 1 - i % kThreads] + 1);

  CHECK_RUNTIME(cudaMemsetAsync(out, 0, sizeof host, stream));
  groups<<<1, kThreads, 0, stream>>>(out, in);
  fetch();
  for (int t = 0; t < kThreads; ++t) {
    int warp = t / 32 * 32, all = 0, before = 0, greatest = 0, alike = 0;
    for (int i = warp; i < warp + 32; ++i) {
      all += host[i];
      if (i < t) before += host[i];
      if (i % 3 == t % 3) greatest = host[i] > greatest ? host[i] : greatest, ++alike;
    }
    SAME(back[t], all);
    SAME(back[kThreads + t], before + host[t]);
    SAME(back[2 * kThreads + t], before);
    SAME(back[3 * kThreads + t], greatest * 100 + alike);
  }
  SAME(back[4 * kThreads], 2);

  int blocks = 8, rounds = 4, expected[8 * kThreads];
  CHECK_RUNTIME(cudaMemcpyAsync(out, in, 8 * kThreads * sizeof(int), cudaMemcpyDeviceToDevice, stream));
  void* parameters[] = {&out, &rounds};
  CHECK_RUNTIME(
      cudaLaunchCooperativeKernel(reinterpret_cast<void*>(whole_grid), blocks, kThreads, parameters, 0, stream));
  fetch();
  for (int i = 0; i < 8 * kThreads; ++i) expected[i] = host[i];
  for (int round = 0; round < rounds; ++round) {
    int first = expected[0];
    for (int i = 0; i < 8 * kThreads; ++i) expected[i] += i + 1 < 8 * kThreads ? expected[i + 1] : first;
  }
  for (int i = 0; i < 8 * kThreads; ++i) SAME(back[i], expected[i]);

  clusters(out, back, stream);

  CHECK_RUNTIME(cudaMemsetAsync(out, 0, 2 * sizeof(int), stream));
  first_kernel<<<16, kThreads, 0, stream>>>(out);
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t c = config(4, 32, 0, stream, &early);
  CHECK_RUNTIME(cudaLaunchKernelEx(&c, second_kernel, out));
  fetch();
  SAME(back[1], 16 * kThreads);
  std::printf("PASSED\n");
  return 0;
}
