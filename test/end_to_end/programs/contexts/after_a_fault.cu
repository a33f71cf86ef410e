// The precedence of two errors: of a call's arguments, and of its failed context (as measured on driver 580). Also
// other answers of a failed context, and of an invalid capture. usage: after_a_fault
#include <cstring>

#include "../driver_check.hpp"

// The objects of the queries exist, from before the fault.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {

int g_wrong = 0;  // every wrong answer is printed, not only the first

void compare(int line, const char* call, CUresult got, CUresult expected) {
  if (got == expected) return;
  std::printf("line %d: %s: %s instead of %s\n", line, call, error_name(got), error_name(expected));
  std::fflush(stdout);
  ++g_wrong;
}

#define ANSWERS(call, expected) compare(__LINE__, #call, call, expected)
#define HOLDS(condition) compare(__LINE__, #condition, (condition) ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN, CUDA_SUCCESS)

constexpr CUresult kFault = CUDA_ERROR_LAUNCH_FAILED;
constexpr CUresult kInvalidated = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;

const char* const kPtx = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .global .align 4 .u32 variable = 3;
.visible .entry fill(.param .u64 p, .param .u32 value) { ret; }
.visible .entry stop() { trap; ret; }
)";

CUstreamCaptureStatus status_of(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  ANSWERS(cuStreamIsCapturing(stream, &status), CUDA_SUCCESS);
  return status;
}

void memory_is_told_to_who_asks_for_one_half_of_it() {
  size_t free_bytes = 0, total_bytes = 0;
  ANSWERS(cuMemGetInfo(&free_bytes, nullptr), CUDA_SUCCESS);
  ANSWERS(cuMemGetInfo(nullptr, &total_bytes), CUDA_SUCCESS);
  HOLDS(free_bytes > 0 && free_bytes <= total_bytes);
}

// The function's name before CUDA 11.
extern "C" CUresult CUDAAPI cuDevicePrimaryCtxSetFlags_before_11(CUdevice,
                                                                 unsigned) __asm__("cuDevicePrimaryCtxSetFlags");

void the_flags_of_a_context_that_is_there_are_changed_since_cuda_11() {
  ANSWERS(cuDevicePrimaryCtxSetFlags_before_11(0, CU_CTX_SCHED_AUTO), CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE);
  ANSWERS(cuDevicePrimaryCtxSetFlags_before_11(0, 0x1000), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuDevicePrimaryCtxSetFlags(0, CU_CTX_SCHED_AUTO), CUDA_SUCCESS);
}

void a_question_with_nowhere_to_write_is_that_whatever_captures() {
  CUstream stream;
  CUgraph graph;
  OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CUstreamCaptureStatus status;
  ANSWERS(cuStreamIsCapturing(CU_STREAM_LEGACY, nullptr), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuStreamIsCapturing(CU_STREAM_LEGACY, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  ANSWERS(cuStreamGetCaptureInfo(CU_STREAM_LEGACY, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr),
          CUDA_ERROR_INVALID_VALUE);
  HOLDS(status_of(stream) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  ANSWERS(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  ANSWERS(cuGraphDestroy(graph), CUDA_SUCCESS);
  OK(cuStreamDestroy(stream));
}

void a_primary_context_is_waited_for_while_its_green_one_captures(CUcontext primary) {
  CUdevResource resource;
  CUdevResourceDesc descriptor;
  CUgreenCtx green;
  CUcontext as_context;
  CUstream stream;
  CUgraph graph;
  OK(cuDeviceGetDevResource(0, &resource, CU_DEV_RESOURCE_TYPE_SM));
  OK(cuDevResourceGenerateDesc(&descriptor, &resource, 1));
  OK(cuGreenCtxCreate(&green, descriptor, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
  OK(cuCtxFromGreenCtx(&as_context, green));
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  ANSWERS(cuCtxSynchronize(), CUDA_SUCCESS);
  HOLDS(status_of(stream) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  ANSWERS(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
  ANSWERS(cuGraphDestroy(graph), CUDA_SUCCESS);
  // The green context itself has not failed.
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuCtxSetCurrent(as_context));
  ANSWERS(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  ANSWERS(cuStreamEndCapture(stream, &graph), kInvalidated);
  OK(cuCtxSetCurrent(primary));
  OK(cuStreamDestroy(stream));
  OK(cuGreenCtxDestroy(green));
}

// An event whose record failed because of an invalid capture has no record.
void an_event_carries_no_invalid_capture_into_another() {
  CUstream invalid, other, plain;
  CUevent event;
  CUgraph graph;
  OK(cuStreamCreate(&invalid, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&plain, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuStreamBeginCapture(invalid, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_RELAXED));
  ANSWERS(cuStreamSynchronize(invalid), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  ANSWERS(cuEventRecord(event, invalid), kInvalidated);
  ANSWERS(cuStreamWaitEvent(plain, event, 0),
          CUDA_SUCCESS);  // without a capture it is an event without a record
  HOLDS(status_of(other) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  ANSWERS(cuStreamWaitEvent(other, event, 0), CUDA_SUCCESS);
  HOLDS(status_of(other) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  ANSWERS(cuEventRecord(event, other), CUDA_SUCCESS);
  ANSWERS(cuStreamEndCapture(invalid, &graph), kInvalidated);
  ANSWERS(cuStreamEndCapture(other, &graph), CUDA_SUCCESS);
  OK(cuGraphDestroy(graph));
  OK(cuEventRecord(event, plain));
  OK(cuStreamWaitEvent(other, event, 0));
  OK(cuEventDestroy(event));
  OK(cuStreamDestroy(invalid));
  OK(cuStreamDestroy(other));
  OK(cuStreamDestroy(plain));
}

void what_a_pool_shares_is_not_asked_beside_a_capture() {
  CUstream stream;
  CUevent event;
  CUgraph graph;
  CUmemPoolPtrExportData exported;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  HOLDS(cuMemPoolExportPointer(&exported, 0) != CUDA_SUCCESS);
  ANSWERS(cuEventRecord(event, stream), kInvalidated);
  ANSWERS(cuStreamEndCapture(stream, &graph), kInvalidated);
  OK(cuEventDestroy(event));
  OK(cuStreamDestroy(stream));
}

struct Things {
  CUmodule module;
  CUfunction function, stop;
  CUlibrary library, unasked;  // no symbol of the second was looked up before the fault
  CUkernel kernel;
  CUstream stream, capturing;
  CUevent event;
  CUmipmappedArray mipmap;
  CUgraph graph, empty;
  CUgraphNode node;
  CUgraphExec exec;  // of the empty graph
  CUdeviceptr memory;
};

Things make_things() {
  Things made{};
  OK(cuModuleLoadData(&made.module, kPtx));
  OK(cuModuleGetFunction(&made.function, made.module, "fill"));
  OK(cuModuleGetFunction(&made.stop, made.module, "stop"));
  OK(cuLibraryLoadData(&made.library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  OK(cuLibraryGetKernel(&made.kernel, made.library, "fill"));
  OK(cuLibraryLoadData(&made.unasked, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  OK(cuStreamCreate(&made.stream, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&made.capturing, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&made.event, CU_EVENT_DISABLE_TIMING));
  OK(cuMemAlloc(&made.memory, 4096));
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  shape.Width = shape.Height = 64;
  shape.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  shape.NumChannels = 1;
  OK(cuMipmappedArrayCreate(&made.mipmap, &shape, 3));
  OK(cuGraphCreate(&made.graph, 0));
  unsigned value = 5;
  void* parameters[] = {&made.memory, &value};
  CUDA_KERNEL_NODE_PARAMS kernel{};
  kernel.func = made.function;
  kernel.gridDimX = 4;
  kernel.gridDimY = kernel.gridDimZ = kernel.blockDimY = kernel.blockDimZ = 1;
  kernel.blockDimX = 256;
  kernel.kernelParams = parameters;
  OK(cuGraphAddKernelNode(&made.node, made.graph, nullptr, 0, &kernel));
  CUgraphNode nothing;
  OK(cuGraphCreate(&made.empty, 0));
  OK(cuGraphAddEmptyNode(&nothing, made.empty, nullptr, 0));
  OK(cuGraphInstantiate(&made.exec, made.empty, 0));
  return made;
}

void functions_and_kernels(const Things& had, bool offers_staged_launches) {
  int number;
  size_t offset, bytes;
  CUmodule module;
  CUfunction function;
  ANSWERS(cuFuncGetAttribute(&number, CU_FUNC_ATTRIBUTE_NUM_REGS, had.function), kFault);
  ANSWERS(cuFuncGetAttribute(nullptr, CU_FUNC_ATTRIBUTE_NUM_REGS, had.function), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuFuncGetAttribute(&number, CU_FUNC_ATTRIBUTE_NUM_REGS, nullptr), CUDA_ERROR_INVALID_HANDLE);
  ANSWERS(cuFuncSetAttribute(had.function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50), kFault);
  ANSWERS(cuFuncSetAttribute(nullptr, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50),
          CUDA_ERROR_INVALID_HANDLE);
  ANSWERS(cuFuncSetCacheConfig(had.function, CU_FUNC_CACHE_PREFER_L1), kFault);
  int clusters;
  CUlaunchConfig shape{};
  shape.gridDimX = 4;
  shape.gridDimY = shape.gridDimZ = shape.blockDimY = shape.blockDimZ = 1;
  shape.blockDimX = 64;
  ANSWERS(cuOccupancyMaxActiveClusters(&clusters, had.function, &shape), kFault);
  ANSWERS(cuOccupancyMaxActiveClusters(nullptr, had.function, &shape), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuOccupancyMaxPotentialClusterSize(&clusters, nullptr, &shape), CUDA_ERROR_INVALID_VALUE);
  CUfunctionLoadingState loading;
  ANSWERS(cuFuncIsLoaded(nullptr, had.function), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuFuncIsLoaded(&loading, nullptr), CUDA_ERROR_INVALID_HANDLE);
  ANSWERS(cuFuncIsLoaded(&loading, had.function), kFault);
  ANSWERS(cuFuncLoad(nullptr), CUDA_ERROR_INVALID_HANDLE);
  ANSWERS(cuFuncLoad(had.function), kFault);
  ANSWERS(cuFuncSetCacheConfig(nullptr, CU_FUNC_CACHE_PREFER_L1), CUDA_ERROR_INVALID_HANDLE);
  ANSWERS(cuFuncSetSharedMemConfig(nullptr, CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE), CUDA_ERROR_INVALID_HANDLE);
  ANSWERS(cuFuncGetModule(&module, had.function), kFault);
  ANSWERS(cuFuncGetModule(nullptr, had.function), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuFuncGetModule(&module, nullptr), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuKernelGetAttribute(nullptr, CU_FUNC_ATTRIBUTE_NUM_REGS, nullptr, 0), CUDA_ERROR_INVALID_HANDLE);
  ANSWERS(cuKernelGetFunction(&function, had.kernel), kFault);
  ANSWERS(cuKernelGetFunction(nullptr, had.kernel), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuKernelGetFunction(&function, nullptr), CUDA_ERROR_INVALID_HANDLE);
  ANSWERS(cuFuncGetParamInfo(had.stop, 1, &offset, &bytes), kFault);
  ANSWERS(cuFuncGetParamInfo(nullptr, 1, &offset, &bytes), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuFuncGetParamInfo(had.stop, 1, nullptr, &bytes), CUDA_ERROR_INVALID_VALUE);
  // Also queries that need no device.
  ANSWERS(cuKernelGetParamInfo(had.kernel, 1, &offset, &bytes), kFault);
  ANSWERS(cuKernelGetParamInfo(had.kernel, 1, &offset, nullptr), kFault);
  // A function of CUDA 3's launches, which not all devices offer.
  if (offers_staged_launches) ANSWERS(cuFuncSetBlockShape(had.function, 256, 0, 1), kFault);
}

void libraries_and_modules(const Things& had) {
  unsigned count;
  CUmodule module;
  CUdeviceptr address;
  size_t bytes;
  ANSWERS(cuLibraryGetModule(&module, had.library), kFault);
  ANSWERS(cuLibraryGetModule(nullptr, had.library), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuLibraryGetModule(&module, nullptr), CUDA_ERROR_INVALID_HANDLE);
  ANSWERS(cuLibraryGetGlobal(&address, &bytes, had.library, nullptr), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuLibraryGetGlobal(&address, nullptr, had.library, "variable"), kFault);
  ANSWERS(cuLibraryGetGlobal(nullptr, nullptr, had.library, "variable"), CUDA_ERROR_INVALID_VALUE);
  CUfunction function;
  ANSWERS(cuModuleGetFunctionCount(&count, had.module), kFault);
  ANSWERS(cuModuleGetFunctionCount(nullptr, had.module), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuModuleGetFunctionCount(&count, nullptr), CUDA_ERROR_INVALID_HANDLE);
  ANSWERS(cuModuleEnumerateFunctions(&function, 1, had.module), kFault);
  ANSWERS(cuModuleEnumerateFunctions(nullptr, 1, had.module), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuModuleEnumerateFunctions(&function, 1, nullptr), CUDA_ERROR_INVALID_HANDLE);
  ANSWERS(cuModuleGetGlobal(nullptr, nullptr, had.module, nullptr), kFault);
  ANSWERS(cuModuleGetGlobal(&address, &bytes, nullptr, "variable"), CUDA_ERROR_INVALID_HANDLE);
  ANSWERS(cuModuleGetGlobal(nullptr, nullptr, nullptr, nullptr), CUDA_ERROR_INVALID_HANDLE);
  ANSWERS(cuModuleGetFunction(&function, had.module, nullptr), kFault);
  ANSWERS(cuModuleGetFunction(&function, nullptr, "fill"), CUDA_ERROR_INVALID_HANDLE);
  ANSWERS(cuModuleGetFunction(nullptr, nullptr, nullptr), CUDA_ERROR_INVALID_HANDLE);
  ANSWERS(cuModuleUnload(nullptr), CUDA_ERROR_INVALID_HANDLE);
  ANSWERS(cuLibraryGetGlobal(&address, &bytes, nullptr, "variable"), CUDA_ERROR_INVALID_HANDLE);
}

void kernels_are_found_by_whoever_asks_after_the_fault(const Things& had) {
  CUkernel found = nullptr, all[2] = {};
  CUfunction function;
  const char* name = nullptr;
  size_t offset, bytes;
  int threads = 0;
  ANSWERS(cuLibraryGetKernel(&found, had.unasked, "fill"), CUDA_SUCCESS);
  ANSWERS(cuLibraryEnumerateKernels(all, 2, had.unasked), CUDA_SUCCESS);
  HOLDS(found != nullptr && (all[0] == found || all[1] == found));
  ANSWERS(cuKernelGetName(&name, found), CUDA_SUCCESS);
  HOLDS(name && std::strcmp(name, "fill") == 0);
  ANSWERS(cuKernelGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, found, 0), CUDA_SUCCESS);
  HOLDS(threads > 0);
  ANSWERS(cuKernelGetParamInfo(found, 0, &offset, &bytes), kFault);
  ANSWERS(cuKernelGetFunction(&function, found), kFault);
}

void arrays_and_pools(const Things& had) {
  CUDA_ARRAY_MEMORY_REQUIREMENTS requirements;
  CUDA_ARRAY_SPARSE_PROPERTIES sparse;
  CUmemPoolPtrExportData exported;
  ANSWERS(cuArrayDestroy(nullptr), CUDA_ERROR_INVALID_HANDLE);
  ANSWERS(cuMipmappedArrayDestroy(nullptr), CUDA_ERROR_INVALID_HANDLE);
  ANSWERS(cuArrayGetMemoryRequirements(&requirements, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuArrayGetSparseProperties(&sparse, nullptr), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuMipmappedArrayGetSparseProperties(&sparse, nullptr), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuMipmappedArrayGetMemoryRequirements(&requirements, had.mipmap, 0), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuMemPoolExportPointer(&exported, had.memory), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuMipmappedArrayDestroy(had.mipmap), kFault);
}

void streams(const Things& had) {
  unsigned flags;
  int priority;
  ANSWERS(cuStreamGetPriority(had.stream, &priority), kFault);
  ANSWERS(cuStreamGetPriority(had.stream, nullptr), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuStreamGetFlags(had.stream, &flags), kFault);
  ANSWERS(cuStreamGetFlags(had.stream, nullptr), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuStreamGetCtx(had.stream, nullptr), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuStreamGetCtx_v2(had.stream, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuStreamGetId(had.stream, nullptr), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuStreamGetGreenCtx(had.stream, nullptr), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuStreamGetDevice(had.stream, nullptr), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuStreamBeginCapture(had.stream, CU_STREAM_CAPTURE_MODE_GLOBAL), kFault);
  ANSWERS(cuStreamBeginCapture(had.stream, CUstreamCaptureMode(99)), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuLaunchHostFunc(had.stream, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuStreamAddCallback(had.stream, nullptr, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuStreamAddCallback(
              had.stream, [](CUstream, CUresult, void*) {}, nullptr, 1),
          CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuEventRecordWithFlags(had.event, had.stream, 99), kFault);
  CUstream made;
  ANSWERS(cuStreamCreateWithPriority(&made, 99, 0), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuStreamCreateWithPriority(&made, CU_STREAM_NON_BLOCKING, 0), kFault);
}

// Some calls still check captures. The capture is in thread-local mode; this thread is in relaxed mode except here.
void captures(const Things& had) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  CUgraph graph;
  CUgraphExec exec;
  OK(cuThreadExchangeStreamCaptureMode(&mode));
  ANSWERS(cuMemFree(had.memory), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  ANSWERS(cuGraphExecDestroy(had.exec), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  ANSWERS(cuGraphInstantiate(&exec, had.graph, 0), kFault);
  ANSWERS(cuMemHostRegister(&graph, sizeof graph, 0), kFault);
  ANSWERS(cuModuleUnload(had.module), kFault);
  ANSWERS(cuCtxSynchronize(), kFault);
  ANSWERS(cuStreamEndCapture(had.capturing, &graph), kFault);
  ANSWERS(cuStreamDestroy(had.capturing), kFault);
  ANSWERS(cuMemFree(had.memory), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  OK(cuThreadExchangeStreamCaptureMode(&mode));
}

void contexts_and_memory(CUdeviceptr memory) {
  unsigned version;
  unsigned long long id;
  ANSWERS(cuCtxGetApiVersion(nullptr, &version), kFault);
  ANSWERS(cuCtxGetApiVersion(nullptr, nullptr), kFault);
  ANSWERS(cuCtxGetId(nullptr, &id), kFault);
  ANSWERS(cuCtxGetId(nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuGreenCtxGetId(nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuGreenCtxGetId(nullptr, &id), kFault);
  size_t limit;
  ANSWERS(cuCtxGetLimit(nullptr, CU_LIMIT_STACK_SIZE), kFault);
  ANSWERS(cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE), kFault);
  ANSWERS(cuMemGetInfo(nullptr, nullptr), kFault);
  CUdeviceptr address;
  ANSWERS(cuMemGetAddressRange(nullptr, nullptr, memory), CUDA_SUCCESS);
  ANSWERS(cuMemGetAddressRange(&address, nullptr, memory), kFault);
  ANSWERS(cuMemAllocManaged(nullptr, 4096, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
  ANSWERS(cuCtxSetFlags(CU_CTX_SCHED_SPIN), CUDA_SUCCESS);
}

// Objects from before the fault are still valid, and their graphs can be changed.
void graphs(const Things& had) {
  CUDA_KERNEL_NODE_PARAMS kernel{};
  ANSWERS(cuGraphKernelNodeGetParams(had.node, &kernel), CUDA_SUCCESS);
  HOLDS(kernel.gridDimX == 4 && kernel.blockDimX == 256);
  // The first version of the function, which cuda.h no longer has.
  using Update = CUresult (*)(CUgraphExec, CUgraph, CUgraphNode*, CUgraphExecUpdateResult*);
  constexpr int kFirstVersion = 10020;
  void* found = nullptr;
  OK(cuGetProcAddress("cuGraphExecUpdate", &found, kFirstVersion, CU_GET_PROC_ADDRESS_DEFAULT, nullptr));
  const auto update = reinterpret_cast<Update>(found);
  CUgraphNode node;
  CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_ERROR;
  ANSWERS(update(had.exec, had.empty, nullptr, &result), CUDA_SUCCESS);
  HOLDS(result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
  ANSWERS(update(had.exec, had.empty, &node, nullptr), CUDA_SUCCESS);
  // A graph still accepts nodes that do not involve the device.
  CUgraphNodeParams record{.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD};
  record.eventRecord.event = had.event;
  ANSWERS(cuGraphAddNode(&node, had.empty, nullptr, nullptr, 0, &record), CUDA_SUCCESS);
  ANSWERS(cuGraphAddEventWaitNode(&node, had.empty, nullptr, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  CUDA_MEM_ALLOC_NODE_PARAMS memory{};
  memory.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  memory.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  memory.bytesize = 4096;
  ANSWERS(cuGraphAddMemAllocNode(&node, had.empty, nullptr, 0, &memory), CUDA_SUCCESS);
  ANSWERS(cuGraphAddMemFreeNode(&node, had.empty, &node, 1, memory.dptr), CUDA_SUCCESS);
  CUDA_MEMSET_NODE_PARAMS set{.dst = had.memory, .elementSize = 1, .width = 64, .height = 1};
  ANSWERS(cuGraphAddMemsetNode(&node, had.empty, nullptr, 0, &set, nullptr), CUDA_SUCCESS);
  CUcontext current;
  OK(cuCtxGetCurrent(&current));
  ANSWERS(cuGraphAddMemsetNode(&node, had.empty, nullptr, 0, &set, current), kFault);
}

}  // namespace

int main() {
  CUcontext primary, other;
  CUstream of_other;
  retain_primary();
  OK(cuCtxGetCurrent(&primary));
  memory_is_told_to_who_asks_for_one_half_of_it();
  the_flags_of_a_context_that_is_there_are_changed_since_cuda_11();
  a_question_with_nowhere_to_write_is_that_whatever_captures();
  an_event_carries_no_invalid_capture_into_another();
  what_a_pool_shares_is_not_asked_beside_a_capture();
  a_primary_context_is_waited_for_while_its_green_one_captures(primary);

  const Things had = make_things();
  const bool offers_staged_launches = cuFuncSetBlockShape(had.function, 1, 1, 1) == CUDA_SUCCESS;
  OK(cuCtxCreate(&other, nullptr, 0, 0));
  OK(cuStreamCreate(&of_other, CU_STREAM_NON_BLOCKING));
  OK(cuCtxSetCurrent(primary));
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  OK(cuThreadExchangeStreamCaptureMode(&mode));
  OK(cuStreamBeginCapture(had.capturing, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  OK(cuLaunchKernel(had.stop, 1, 1, 1, 1, 1, 1, 0, had.stream, nullptr, nullptr));
  ANSWERS(cuStreamSynchronize(had.stream), kFault);
  ANSWERS(cuCtxSynchronize(), kFault);
  functions_and_kernels(had, offers_staged_launches);
  libraries_and_modules(had);
  kernels_are_found_by_whoever_asks_after_the_fault(had);
  arrays_and_pools(had);
  streams(had);
  captures(had);
  contexts_and_memory(had.memory);
  graphs(had);
  // The device's other contexts have failed, too.
  OK(cuCtxSetCurrent(other));
  ANSWERS(cuStreamBeginCapture(of_other, CU_STREAM_CAPTURE_MODE_GLOBAL), kFault);
  OK(cuCtxSetCurrent(primary));
  ANSWERS(cuModuleUnload(had.module), kFault);
  std::printf("%s\n", g_wrong ? "FAILED" : "PASSED");
  return g_wrong ? 1 : 0;
}
