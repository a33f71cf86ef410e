// Clusters (sm_90 and later): distributed shared memory, their occupancy, a launch attribute that sets their size, and
// a dependent launch that starts early.
#include <cooperative_groups.h>

#include "../../support/cuda_check.hpp"

namespace groups = cooperative_groups;

namespace {

// Each block reads the shared memory of the next block of its cluster.
__global__ void pass_on(int* out) {
  __shared__ int mine[64];
  groups::cluster_group cluster = groups::this_cluster();
  mine[threadIdx.x] = int(blockIdx.x) * 1000 + int(threadIdx.x);
  cluster.sync();
  const int* next = cluster.map_shared_rank(mine, (cluster.block_rank() + 1) % cluster.num_blocks());
  out[blockIdx.x * 64 + threadIdx.x] = next[threadIdx.x];
  cluster.sync();  // no block ends while another reads
}

__global__ void __cluster_dims__(2, 1, 1) fixed_size(unsigned* out) {
  out[blockIdx.x] = groups::this_cluster().num_blocks() * 10 + groups::this_cluster().block_rank();
}

__global__ void produce(int* data, int value) {
  cudaTriggerProgrammaticLaunchCompletion();
  data[threadIdx.x] = value + int(threadIdx.x);
}
__global__ void consume(const int* data, int* out) {
  cudaGridDependencySynchronize();
  out[threadIdx.x] = data[threadIdx.x] * 2;
}

void distributed_shared_memory(unsigned size) {
  constexpr unsigned kBlocks = 16;
  check::Device<int> out(kBlocks * 64);
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {size, 1, 1};
  config.gridDim = dim3(kBlocks);
  config.blockDim = dim3(64);
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  CHECK_RUNTIME(cudaOccupancyMaxActiveClusters(&clusters, pass_on, &config));
  EXPECT(clusters >= 1);
  CHECK_RUNTIME(cudaLaunchKernelEx(&config, pass_on, out.get()));
  const auto host = out.host();
  for (unsigned block = 0; block < kBlocks; ++block)
    for (unsigned i = 0; i < 64; ++i)
      EXPECT(host[block * 64 + i] == int(block / size * size + (block + 1) % size) * 1000 + int(i));
}

void compiled_size() {
  check::Device<unsigned> out(8);
  fixed_size<<<8, 32>>>(out.get());
  CHECK_RUNTIME(cudaGetLastError());
  const auto host = out.host();
  for (unsigned block = 0; block < 8; ++block) EXPECT(host[block] == 20 + block % 2);
  fixed_size<<<7, 32>>>(out.get());  // not a multiple of the cluster
  EXPECT(cudaGetLastError() != cudaSuccess);
}

void dependent_launch() {
  check::Device<int> data(128), out(128);
  cudaStream_t stream;
  CHECK_RUNTIME(cudaStreamCreate(&stream));
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.gridDim = dim3(1);
  config.blockDim = dim3(128);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  for (int round = 0; round < 20; ++round) {
    produce<<<1, 128, 0, stream>>>(data.get(), round);
    CHECK_RUNTIME(cudaLaunchKernelEx(&config, consume, static_cast<const int*>(data.get()), out.get()));
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
    const auto host = out.host();
    for (int i = 0; i < 128; ++i) EXPECT(host[i] == 2 * (round + i));
  }
  CHECK_RUNTIME(cudaStreamDestroy(stream));
}

}  // namespace

int main() {
  for (unsigned size : {1u, 2u, 4u, 8u}) distributed_shared_memory(size);
  compiled_size();
  dependent_launch();
  std::printf("PASSED\n");
}
