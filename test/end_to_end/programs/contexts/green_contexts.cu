// Green contexts: parts of the multiprocessors with streams of their own, and all else the primary context's.
#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "../driver_check.hpp"

// Every block notes the multiprocessor it runs on, and stays there for a while so that the others have to go elsewhere.
__global__ void where(unsigned* processor, long long cycles) {
  unsigned id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  long long begin = clock64();
  while (clock64() - begin < cycles) {}
  if (threadIdx.x == 0) processor[blockIdx.x] = id;
}

namespace {

constexpr unsigned kBlocks = 512;

std::set<unsigned> run(CUstream stream, CUdeviceptr ids) {
  where<<<kBlocks, 256, 0, stream>>>(reinterpret_cast<unsigned*>(ids), 100000);
  std::vector<unsigned> found(kBlocks);
  OK(cuMemcpyDtoHAsync(found.data(), ids, kBlocks * 4, stream));
  OK(cuStreamSynchronize(stream));
  return {found.begin(), found.end()};
}

// An invalid resource makes no context (as measured on an H200).
void check_refusals(CUdevice device, const CUdevResource& all) {
  CUdevResource own{}, part{};
  CUdevResourceDesc descriptor;
  CUgreenCtx green;
  unsigned count = 1;
  FAILS(cuDeviceGetDevResource(device, &own, CU_DEV_RESOURCE_TYPE_INVALID), CUDA_ERROR_INVALID_RESOURCE_TYPE);
  FAILS(cuDevSmResourceSplitByCount(&part, &count, &own, nullptr, 0, 0), CUDA_ERROR_INVALID_RESOURCE_TYPE);
  FAILS(cuDevResourceGenerateDesc(&descriptor, &own, 1), CUDA_ERROR_INVALID_RESOURCE_TYPE);
  own = all;
  std::memset(own._internal_padding, 0x41, sizeof own._internal_padding);
  FAILS(cuDevSmResourceSplitByCount(&part, &count, &own, nullptr, 0, 0), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  FAILS(cuDevResourceGenerateDesc(&descriptor, &own, 1), CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  FAILS(cuCtxGetDevResource(nullptr, &own, CU_DEV_RESOURCE_TYPE_SM), CUDA_ERROR_INVALID_CONTEXT);
  own = all;
  OK(cuDevResourceGenerateDesc(&descriptor, &own, 1));
  FAILS(cuGreenCtxCreate(&green, descriptor, device, 0), CUDA_ERROR_INVALID_VALUE);
}

// Waiting for the primary context waits for its green ones.
void check_waits(CUcontext primary, CUstream green, CUdeviceptr places) {
  where<<<1, 32, 0, green>>>(reinterpret_cast<unsigned*>(places), 20000000);
  OK(cuCtxSynchronize_v2(primary));
  OK(cuStreamQuery(green));
}

// Memory, modules and events belong to the primary context: each context and stream can use them.
void check_sharing(CUcontext primary, CUcontext one, CUcontext other, CUstream of_other, CUdeviceptr places) {
  CUdeviceptr memory;
  CUevent event;
  CUstream plain;
  OK(cuStreamCreate(&plain, CU_STREAM_NON_BLOCKING));
  FAILS(cuCtxDestroy(one), CUDA_ERROR_INVALID_CONTEXT);
  OK(cuCtxSetCurrent(one));
  OK(cuMemAlloc(&memory, 4096));
  CUcontext of_memory = nullptr;
  OK(cuPointerGetAttribute(&of_memory, CU_POINTER_ATTRIBUTE_CONTEXT, memory));
  DEMAND(of_memory == primary);
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  where<<<1, 32>>>(reinterpret_cast<unsigned*>(places), 1000);
  OK(cuEventRecord(event, nullptr));
  OK(cuStreamWaitEvent(of_other, event, 0));
  OK(cuMemsetD32Async(memory, 7, 1024, of_other));
  OK(cuEventRecord(event, of_other));
  OK(cuStreamWaitEvent(plain, event, 0));
  OK(cuMemsetD32Async(memory, 9, 512, plain));
  OK(cuEventRecord(event, plain));
  OK(cuCtxSetCurrent(other));
  OK(cuEventSynchronize(event));
  std::vector<unsigned> words(1024);
  OK(cuMemcpyDtoH(words.data(), memory, 4096));
  DEMAND(words[0] == 9 && words[511] == 9 && words[512] == 7 && words[1023] == 7);
  OK(cuCtxSetCurrent(primary));
  OK(cuMemFree(memory));
  OK(cuEventDestroy(event));
  OK(cuStreamDestroy(plain));
}

}  // namespace

int main() {
  CUdevice device = retain_primary();
  CUdevResource all{}, groups[2]{}, rest{};
  OK(cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM));
  int processors = 0;
  OK(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
  DEMAND(all.type == CU_DEV_RESOURCE_TYPE_SM && int(all.sm.smCount) == processors);

  unsigned count = 0, wanted = std::max(all.sm.minSmPartitionSize, 16u * (processors >= 32));
  OK(cuDevSmResourceSplitByCount(nullptr, &count, &all, nullptr, 0, wanted));
  DEMAND(count >= 2);
  count = 2;
  OK(cuDevSmResourceSplitByCount(groups, &count, &all, &rest, 0, wanted));
  DEMAND(count == 2 && groups[0].sm.smCount >= wanted && groups[1].sm.smCount >= wanted);

  check_refusals(device, all);
  CUdevResourceDesc descriptors[2];
  CUgreenCtx greens[2];
  CUcontext contexts[2];
  CUstream streams[2];
  unsigned long long ids[2];
  for (int i = 0; i < 2; ++i) {
    OK(cuDevResourceGenerateDesc(&descriptors[i], &groups[i], 1));
    OK(cuGreenCtxCreate(&greens[i], descriptors[i], device, CU_GREEN_CTX_DEFAULT_STREAM));
    OK(cuCtxFromGreenCtx(&contexts[i], greens[i]));
    OK(cuGreenCtxStreamCreate(&streams[i], greens[i], CU_STREAM_NON_BLOCKING, 0));
    OK(cuGreenCtxGetId(greens[i], &ids[i]));
    CUdevResource own{};
    OK(cuGreenCtxGetDevResource(greens[i], &own, CU_DEV_RESOURCE_TYPE_SM));
    DEMAND(own.sm.smCount == groups[i].sm.smCount);
    OK(cuCtxGetDevResource(contexts[i], &own, CU_DEV_RESOURCE_TYPE_SM));
    DEMAND(own.sm.smCount == groups[i].sm.smCount);
    FAILS(cuGreenCtxGetDevResource(greens[i], &own, CUdevResourceType(2)), CUDA_ERROR_INVALID_RESOURCE_TYPE);
  }
  DEMAND(ids[0] != ids[1]);
  CUgreenCtx found = nullptr;
  OK(cuStreamGetGreenCtx(streams[1], &found));
  DEMAND(found == greens[1]);
  CUcontext of_stream = nullptr;
  CUgreenCtx green_of_stream = nullptr;
  OK(cuStreamGetCtx_v2(streams[0], &of_stream, &green_of_stream));
  DEMAND(green_of_stream == greens[0]);
  CUstream plain;
  OK(cuStreamCreate(&plain, CU_STREAM_NON_BLOCKING));
  OK(cuStreamGetGreenCtx(plain, &found));
  DEMAND(found == nullptr);

  CUdeviceptr places;
  OK(cuMemAlloc(&places, kBlocks * 4));
  std::set<unsigned> first = run(streams[0], places), second = run(streams[1], places);
  DEMAND(first.size() >= groups[0].sm.smCount / 2 && first.size() <= groups[0].sm.smCount);
  std::vector<unsigned> both;
  std::set_intersection(first.begin(), first.end(), second.begin(), second.end(), std::back_inserter(both));
  DEMAND(both.empty());

  // Between the two, and as the current context.
  CUevent event;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  where<<<4, 32, 0, streams[0]>>>(reinterpret_cast<unsigned*>(places), 1000);
  OK(cuGreenCtxRecordEvent(greens[0], event));
  OK(cuGreenCtxWaitEvent(greens[1], event));
  OK(cuStreamSynchronize(streams[1]));
  OK(cuEventSynchronize(event));
  CUcontext before;
  OK(cuCtxGetCurrent(&before));
  check_waits(before, streams[0], places);
  check_sharing(before, contexts[0], contexts[1], streams[1], places);
  OK(cuCtxSetCurrent(contexts[0]));
  CUcontext current;
  OK(cuCtxGetCurrent(&current));
  DEMAND(current == contexts[0]);
  CUstream inside;
  OK(cuStreamCreate(&inside, CU_STREAM_NON_BLOCKING));
  OK(cuStreamGetGreenCtx(inside, &found));
  DEMAND(found == greens[0]);
  OK(cuMemsetD32Async(places, 6, kBlocks, inside));
  OK(cuCtxSynchronize());
  OK(cuStreamDestroy(inside));
  OK(cuCtxSetCurrent(before));
  for (int i = 0; i < 2; ++i) {
    OK(cuStreamDestroy(streams[i]));
    OK(cuGreenCtxDestroy(greens[i]));
  }
  OK(cuMemsetD32(places, 1, kBlocks));
  OK(cuEventDestroy(event));
  OK(cuMemFree(places));
  std::printf("PASSED\n");
  return 0;
}
