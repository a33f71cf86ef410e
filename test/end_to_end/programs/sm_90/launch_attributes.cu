// Attributes of launches, streams, contexts and functions, each checked by its effect or by its value read back
// (compute capability 9.0).
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <cstring>
#include <vector>

#include "../driver_check.hpp"
#include "../../../support/cuda_check.hpp"

namespace cg = cooperative_groups;

// Each block of a cluster writes its neighbour's value from shared memory.
__global__ void neighbours(int* out) {
#if __CUDA_ARCH__ >= 900
  __shared__ int own;
  cg::cluster_group cluster = cg::this_cluster();
  if (threadIdx.x == 0) own = int(blockIdx.x) * 10;
  cluster.sync();
  if (threadIdx.x == 0) {
    unsigned next = (cluster.block_rank() + 1) % cluster.num_blocks();
    out[blockIdx.x] = *cluster.map_shared_rank(&own, next) + int(cluster.num_blocks());
  }
  cluster.sync();
#endif
}

__global__ void all_meet(int* counter, int* out) {
  cg::grid_group grid = cg::this_grid();
  if (threadIdx.x == 0) atomicAdd(counter, 1);
  grid.sync();
  if (threadIdx.x == 0) out[blockIdx.x] = *counter;
}

__global__ void produce(int* data, int value, long long cycles) {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
  long long begin = clock64();
  while (clock64() - begin < cycles) {}
  data[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

__global__ void consume(const int* data, int* out) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = data[i] + 1;
}

namespace {

int *g_data, *g_out;

cudaLaunchConfig_t configuration(unsigned blocks, unsigned threads, cudaStream_t stream,
                                 cudaLaunchAttribute* attributes, unsigned count) {
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return config;
}

void clusters(cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {4, 1, 1};
  cudaLaunchConfig_t config = configuration(16, 64, stream, &attribute, 1);
  CHECK_RUNTIME(cudaLaunchKernelEx(&config, neighbours, g_out));
  int found[16], most = 0, size = 0;
  CHECK_RUNTIME(cudaMemcpyAsync(found, g_out, sizeof found, cudaMemcpyDeviceToHost, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  for (int i = 0; i < 16; ++i) DEMAND(found[i] == (i / 4 * 4 + (i + 1) % 4) * 10 + 4);
  CHECK_RUNTIME(cudaOccupancyMaxActiveClusters(&most, neighbours, &config));
  DEMAND(most > 0);
  CHECK_RUNTIME(cudaOccupancyMaxPotentialClusterSize(&size, neighbours, &config));
  DEMAND(size == 8);
  attribute.val.clusterDim = {3, 1, 1};
  DEMAND(cudaLaunchKernelEx(&config, neighbours, g_out) == cudaErrorInvalidClusterSize ||
         cudaGetLastError() != cudaSuccess);
  cudaGetLastError();
}

void cooperative(cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  CHECK_RUNTIME(cudaMemsetAsync(g_data, 0, 4, stream));
  cudaLaunchConfig_t config = configuration(32, 64, stream, &attribute, 1);
  CHECK_RUNTIME(cudaLaunchKernelEx(&config, all_meet, g_data, g_out));
  int found[32];
  CHECK_RUNTIME(cudaMemcpyAsync(found, g_out, sizeof found, cudaMemcpyDeviceToHost, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  for (int value : found) DEMAND(value == 32);
  config.gridDim = 1 << 20;
  DEMAND(cudaLaunchKernelEx(&config, all_meet, g_data, g_out) == cudaErrorCooperativeLaunchTooLarge);
  cudaGetLastError();
}

void dependent_launches(cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = configuration(8, 128, stream, &attribute, 1);
  std::vector<int> found(1024);
  for (int round = 0; round < 20; ++round) {
    produce<<<8, 128, 0, stream>>>(g_data, round, 20000);
    CHECK_RUNTIME(cudaLaunchKernelEx(&config, consume, static_cast<const int*>(g_data), g_out));
    CHECK_RUNTIME(cudaMemcpyAsync(found.data(), g_out, 4096, cudaMemcpyDeviceToHost, stream));
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
    for (int value : found) DEMAND(value == round + 1);
  }
}

void events_of_launches(cudaStream_t stream) {
  cudaEvent_t begun, triggered;
  CHECK_RUNTIME(cudaEventCreateWithFlags(&begun, cudaEventDisableTiming));
  CHECK_RUNTIME(cudaEventCreateWithFlags(&triggered, cudaEventDisableTiming));
  cudaStream_t other;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticEvent;
  attributes[0].val.programmaticEvent.event = triggered;
  attributes[1].id = cudaLaunchAttributeLaunchCompletionEvent;
  attributes[1].val.launchCompletionEvent.event = begun;
  for (int which = 0; which < 2; ++which) {
    cudaLaunchConfig_t config = configuration(8, 128, stream, &attributes[which], 1);
    CHECK_RUNTIME(cudaLaunchKernelEx(&config, produce, g_data, 55 + which, 20000LL));
    CHECK_RUNTIME(cudaStreamWaitEvent(other, which ? begun : triggered, 0));
    CHECK_RUNTIME(cudaEventSynchronize(which ? begun : triggered));
    CHECK_RUNTIME(cudaStreamSynchronize(other));
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
    int value = 0;
    CHECK_RUNTIME(cudaMemcpy(&value, g_data, 4, cudaMemcpyDeviceToHost));
    DEMAND(value == 55 + which);
  }
  CHECK_RUNTIME(cudaStreamDestroy(other));
  CHECK_RUNTIME(cudaEventDestroy(begun));
  CHECK_RUNTIME(cudaEventDestroy(triggered));
}

void priorities_and_domains(cudaStream_t stream) {
  int least = 0, greatest = 0;
  CHECK_RUNTIME(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaLaunchAttribute attributes[3] = {};
  attributes[0].id = cudaLaunchAttributePriority;
  attributes[0].val.priority = greatest;
  attributes[1].id = cudaLaunchAttributeMemSyncDomain;
  attributes[1].val.memSyncDomain = cudaLaunchMemSyncDomainRemote;
  attributes[2].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  attributes[2].val.sharedMemCarveout = 50;
  cudaLaunchConfig_t config = configuration(8, 128, stream, attributes, 3);
  CHECK_RUNTIME(cudaLaunchKernelEx(&config, produce, g_data, 66, 10LL));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));

  // The same of a stream, read back.
  cudaStreamAttrValue set{}, got{};
  set.priority = greatest;
  CHECK_RUNTIME(cudaStreamSetAttribute(stream, cudaStreamAttributePriority, &set));
  CHECK_RUNTIME(cudaStreamGetAttribute(stream, cudaStreamAttributePriority, &got));
  DEMAND(got.priority == greatest);
  int priority = 0;
  CHECK_RUNTIME(cudaStreamGetPriority(stream, &priority));
  DEMAND(priority == greatest);
  std::memset(&set, 0, sizeof set);
  set.syncPolicy = cudaSyncPolicyYield;
  CHECK_RUNTIME(cudaStreamSetAttribute(stream, cudaStreamAttributeSynchronizationPolicy, &set));
  CHECK_RUNTIME(cudaStreamGetAttribute(stream, cudaStreamAttributeSynchronizationPolicy, &got));
  DEMAND(got.syncPolicy == cudaSyncPolicyYield);
  std::memset(&set, 0, sizeof set);
  set.memSyncDomainMap.default_ = 0;
  set.memSyncDomainMap.remote = 1;
  CHECK_RUNTIME(cudaStreamSetAttribute(stream, cudaLaunchAttributeMemSyncDomainMap, &set));
  CHECK_RUNTIME(cudaStreamGetAttribute(stream, cudaLaunchAttributeMemSyncDomainMap, &got));
  DEMAND(got.memSyncDomainMap.remote == 1);
  std::memset(&set, 0, sizeof set);
  set.accessPolicyWindow.base_ptr = g_data;
  set.accessPolicyWindow.num_bytes = 1 << 16;
  set.accessPolicyWindow.hitRatio = 0.5f;
  set.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
  set.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
  CHECK_RUNTIME(cudaStreamSetAttribute(stream, cudaStreamAttributeAccessPolicyWindow, &set));
  CHECK_RUNTIME(cudaStreamGetAttribute(stream, cudaStreamAttributeAccessPolicyWindow, &got));
  DEMAND(got.accessPolicyWindow.base_ptr == g_data && got.accessPolicyWindow.num_bytes == 1 << 16 &&
         got.accessPolicyWindow.hitRatio == 0.5f);
  cudaStream_t copy;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&copy, cudaStreamNonBlocking));
  CHECK_RUNTIME(cudaStreamCopyAttributes(copy, stream));
  CHECK_RUNTIME(cudaStreamGetAttribute(copy, cudaStreamAttributeAccessPolicyWindow, &got));
  DEMAND(got.accessPolicyWindow.base_ptr == g_data);
  CHECK_RUNTIME(cudaStreamDestroy(copy));
  CHECK_RUNTIME(cudaCtxResetPersistingL2Cache());
}

void limits() {
  const CUlimit settable[] = {CU_LIMIT_STACK_SIZE, CU_LIMIT_PRINTF_FIFO_SIZE, CU_LIMIT_MALLOC_HEAP_SIZE,
                              CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, CU_LIMIT_PERSISTING_L2_CACHE_SIZE};
  const size_t values[] = {4096, 2 << 20, 16 << 20, 4096, 1 << 20};
  for (int i = 0; i < 5; ++i) {
    size_t got = 0;
    OK(cuCtxSetLimit(settable[i], values[i]));
    OK(cuCtxGetLimit(&got, settable[i]));
    if (got < values[i]) std::printf("limit %d: %zu\n", int(settable[i]), got);
    DEMAND(got >= values[i]);
  }
  size_t got = 0;
  OK(cuCtxGetLimit(&got, CU_LIMIT_MAX_L2_FETCH_GRANULARITY));
  FAILS(cuCtxGetLimit(&got, CUlimit(99)), CUDA_ERROR_INVALID_VALUE);
  OK(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1));
  CUfunc_cache cache;
  OK(cuCtxGetCacheConfig(&cache));
}

void functions() {
  cudaFunction_t handle;
  CHECK_RUNTIME(cudaGetFuncBySymbol(&handle, reinterpret_cast<const void*>(neighbours)));
  CUfunction function = reinterpret_cast<CUfunction>(handle);
  int value = 0;
  for (int attribute = 0; attribute < CU_FUNC_ATTRIBUTE_MAX; ++attribute)
    OK(cuFuncGetAttribute(&value, CUfunction_attribute(attribute), function));
  FAILS(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX, function), CUDA_ERROR_INVALID_VALUE);
  OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function));
  DEMAND(value >= 4);
  OK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 25));
  OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, function));
  DEMAND(value == 25);
  OK(cuFuncSetCacheConfig(function, CU_FUNC_CACHE_PREFER_SHARED));
  int grid = 0, block = 0;
  OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, function, nullptr, 0, 0));
  DEMAND(grid > 0 && block > 0);
  size_t bytes = 0;
  OK(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, function, 2, 128));
  DEMAND(bytes > 0);
}

void contexts() {
  CUctxCreateParams parameters{};
  CUexecAffinityParam affinity{};
  affinity.type = CU_EXEC_AFFINITY_TYPE_SM_COUNT;
  affinity.param.smCount.val = 1;
  CUcontext context, before;
  OK(cuCtxGetCurrent(&before));
  OK(cuCtxCreate(&context, &parameters, CU_CTX_SCHED_YIELD, 0));
  unsigned flags = 0;
  OK(cuCtxGetFlags(&flags));
  DEMAND(flags == CU_CTX_SCHED_YIELD);
  OK(cuCtxDestroy(context));
  OK(cuCtxCreate(&context, nullptr, 0, 0));
  OK(cuCtxDestroy(context));
  parameters.execAffinityParams = &affinity;
  parameters.numExecAffinityParams = 1;
  CUresult result = cuCtxCreate(&context, &parameters, 0, 0);  // only with MPS
  if (result != CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY) std::printf("affinity: %s\n", error_name(result));
  if (result == CUDA_SUCCESS) OK(cuCtxDestroy(context));
  OK(cuCtxSetCurrent(before));
}

}  // namespace

int main() {
  retain_primary();
  limits();
  CHECK_RUNTIME(cudaSetDevice(0));
  CHECK_RUNTIME(cudaMalloc(&g_data, 1 << 20));
  CHECK_RUNTIME(cudaMalloc(&g_out, 1 << 20));
  cudaStream_t stream;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  clusters(stream);
  cooperative(stream);
  dependent_launches(stream);
  events_of_launches(stream);
  priorities_and_domains(stream);
  functions();
  contexts();
  CHECK_RUNTIME(cudaStreamDestroy(stream));
  std::printf("PASSED\n");
  return 0;
}
