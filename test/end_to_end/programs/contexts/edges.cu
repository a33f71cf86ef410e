// Edge cases of single calls that CUDA allows or refuses with a certain error: NULL, zero, and orders that only look
// wrong. usage: edges [PART...]: by default all parts; if a call crashes, its line is printed.
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "../driver_check.hpp"

namespace {

constexpr unsigned kBoundThreads = 64;

__global__ void add_one(int* data) { data[threadIdx.x] += 1; }
__global__ void __launch_bounds__(kBoundThreads) bounded(int* data) { data[threadIdx.x] = 1; }

int g_wrong = 0;  // every wrong answer is printed, not only the first

void compare(int line, const char* call, const char* got, const char* expected) {
  if (std::strcmp(got, expected) == 0) return;
  std::printf("line %d: %s: %s instead of %s\n", line, call, got, expected);
  std::fflush(stdout);
  ++g_wrong;
}

// The line of the present check, for a call that crashes.
volatile std::sig_atomic_t g_line = 0;

void crashed(int) {
  char text[] = "crashed at line 00000\n";
  int line = g_line;
  for (char* digit = text + sizeof text - 3; line != 0; line /= 10) *digit-- = char('0' + line % 10);
  [[maybe_unused]] ssize_t written = write(STDOUT_FILENO, text, sizeof text - 1);
}

#define RUNTIME(call, expected) \
  (g_line = __LINE__, compare(__LINE__, #call, cudaGetErrorName(call), cudaGetErrorName(expected)))
#define DRIVER(call, expected) (g_line = __LINE__, compare(__LINE__, #call, error_name(call), error_name(expected)))
#define HOLDS(condition) (g_line = __LINE__, compare(__LINE__, #condition, (condition) ? "true" : "false", "true"))

// The program has the graph that it captures into, so cuStreamEndCapture need not return it.
void capture_into_a_graph_ends_without_one() {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  int* data;
  RUNTIME(cudaMalloc(&data, 4 * sizeof(int)), cudaSuccess);
  RUNTIME(cudaMemset(data, 0, 4 * sizeof(int)), cudaSuccess);
  RUNTIME(cudaStreamCreate(&stream), cudaSuccess);
  RUNTIME(cudaGraphCreate(&graph, 0), cudaSuccess);
  RUNTIME(cudaStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0, cudaStreamCaptureModeGlobal), cudaSuccess);
  add_one<<<1, 4, 0, stream>>>(data);
  RUNTIME(cudaStreamEndCapture(stream, nullptr), cudaSuccess);
  RUNTIME(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  RUNTIME(cudaGraphLaunch(exec, stream), cudaSuccess);
  RUNTIME(cudaStreamSynchronize(stream), cudaSuccess);
  int host[4];
  RUNTIME(cudaMemcpy(host, data, sizeof host, cudaMemcpyDeviceToHost), cudaSuccess);
  HOLDS(host[3] == 1);
  RUNTIME(cudaGraphExecDestroy(exec), cudaSuccess);
  RUNTIME(cudaGraphDestroy(graph), cudaSuccess);
  RUNTIME(cudaStreamDestroy(stream), cudaSuccess);
  RUNTIME(cudaFree(data), cudaSuccess);
}

// The address stays the graph's: the program frees a launch's allocation, and the next launch allocates it again.
void memory_of_a_graph_is_freed_and_allocated_again() {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  RUNTIME(cudaStreamCreate(&stream), cudaSuccess);
  RUNTIME(cudaGraphCreate(&graph, 0), cudaSuccess);
  cudaMemAllocNodeParams wanted{};
  wanted.poolProps.allocType = cudaMemAllocationTypePinned;
  wanted.poolProps.location = {cudaMemLocationTypeDevice, 0};
  wanted.bytesize = 1 << 20;
  cudaGraphNode_t allocation, fill;
  RUNTIME(cudaGraphAddMemAllocNode(&allocation, graph, nullptr, 0, &wanted), cudaSuccess);
  cudaMemsetParams bytes{};
  bytes.dst = wanted.dptr;
  bytes.value = 7;
  bytes.elementSize = 1;
  bytes.width = 16;
  bytes.height = 1;
  RUNTIME(cudaGraphAddMemsetNode(&fill, graph, &allocation, 1, &bytes), cudaSuccess);
  RUNTIME(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  RUNTIME(cudaGraphDestroy(graph), cudaSuccess);
  for (int round = 0; round < 4; ++round) {
    RUNTIME(cudaGraphLaunch(exec, stream), cudaSuccess);
    RUNTIME(cudaStreamSynchronize(stream), cudaSuccess);
    char host[16];
    RUNTIME(cudaMemcpy(host, wanted.dptr, sizeof host, cudaMemcpyDeviceToHost), cudaSuccess);
    HOLDS(host[15] == 7);
    RUNTIME(round % 2 ? cudaFreeAsync(wanted.dptr, stream) : cudaFree(wanted.dptr), cudaSuccess);
  }
  // A launch's allocation outlives the graph.
  RUNTIME(cudaGraphLaunch(exec, stream), cudaSuccess);
  RUNTIME(cudaStreamSynchronize(stream), cudaSuccess);
  RUNTIME(cudaGraphExecDestroy(exec), cudaSuccess);
  RUNTIME(cudaMemset(wanted.dptr, 1, 16), cudaSuccess);
  RUNTIME(cudaFree(wanted.dptr), cudaSuccess);
  RUNTIME(cudaStreamDestroy(stream), cudaSuccess);
}

// Physical memory and reservations belong to no context: they work before the first and after the last one.
void virtual_memory_needs_no_context() {
  CUcontext context;
  DRIVER(cuCtxPopCurrent(&context), CUDA_SUCCESS);
  CUcontext none;
  DRIVER(cuCtxGetCurrent(&none), CUDA_SUCCESS);
  HOLDS(none == nullptr);
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  size_t page;
  DRIVER(cuMemGetAllocationGranularity(&page, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM), CUDA_SUCCESS);
  CUmemGenericAllocationHandle first, second;
  CUdeviceptr space;
  DRIVER(cuMemCreate(&first, page, &properties, 0), CUDA_SUCCESS);
  DRIVER(cuMemCreate(&second, page, &properties, 0), CUDA_SUCCESS);
  DRIVER(cuMemAddressReserve(&space, 3 * page, 0, 0, 0), CUDA_SUCCESS);
  DRIVER(cuMemMap(space, page, 0, first, 0), CUDA_SUCCESS);
  DRIVER(cuMemMap(space + page, page, 0, second, 0), CUDA_SUCCESS);
  DRIVER(cuMemMap(space + page, page, 0, first, 0), CUDA_ERROR_INVALID_VALUE);
  CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  DRIVER(cuMemSetAccess(space, 2 * page, &access, 1), CUDA_SUCCESS);
  // Remapped elsewhere, piece by piece; the space cannot be freed while anything is mapped, and can be afterwards.
  DRIVER(cuMemUnmap(space, page), CUDA_SUCCESS);
  DRIVER(cuMemMap(space + 2 * page, page, 0, first, 0), CUDA_SUCCESS);
  DRIVER(cuMemAddressFree(space, 3 * page), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuMemUnmap(space + page, page), CUDA_SUCCESS);
  DRIVER(cuMemUnmap(space + 2 * page, page), CUDA_SUCCESS);
  DRIVER(cuMemRelease(first), CUDA_SUCCESS);
  DRIVER(cuMemRelease(second), CUDA_SUCCESS);
  DRIVER(cuMemAddressFree(space, 3 * page), CUDA_SUCCESS);
  DRIVER(cuCtxPushCurrent(context), CUDA_SUCCESS);

  // A mapping outlives the context that was current when it was made.
  CUcontext other;
  DRIVER(cuCtxCreate(&other, nullptr, 0, 0), CUDA_SUCCESS);
  DRIVER(cuMemAddressReserve(&space, page, 0, 0, 0), CUDA_SUCCESS);
  DRIVER(cuMemCreate(&first, page, &properties, 0), CUDA_SUCCESS);
  DRIVER(cuMemMap(space, page, 0, first, 0), CUDA_SUCCESS);
  DRIVER(cuMemRelease(first), CUDA_SUCCESS);
  DRIVER(cuCtxDestroy(other), CUDA_SUCCESS);
  DRIVER(cuMemUnmap(space, page), CUDA_SUCCESS);
  DRIVER(cuMemAddressFree(space, page), CUDA_SUCCESS);
  DRIVER(cuCtxSetCurrent(context), CUDA_SUCCESS);
}

void nothing_is_no_error() {
  cudaStream_t stream;
  RUNTIME(cudaStreamCreate(&stream), cudaSuccess);
  void* none = stream;
  RUNTIME(cudaMallocAsync(&none, 0, stream), cudaSuccess);
  RUNTIME(cudaFreeHost(nullptr), cudaSuccess);
  RUNTIME(cudaGetLastError(), cudaSuccess);
  RUNTIME(cudaStreamDestroy(stream), cudaSuccess);
}

void errors_are_the_drivers() {
  cudaGraphExec_t exec;
  RUNTIME(cudaGraphInstantiate(&exec, nullptr, 0), cudaErrorInvalidValue);
  RUNTIME(cudaGetLastError(), cudaErrorInvalidValue);
  int* data;
  RUNTIME(cudaMalloc(&data, 4096), cudaSuccess);
  bounded<<<1, kBoundThreads + 1>>>(data);
  RUNTIME(cudaGetLastError(), cudaErrorInvalidValue);
  RUNTIME(cudaFree(data), cudaSuccess);

  CUarray array;
  CUDA_ARRAY_DESCRIPTOR extent{64, 4, CU_AD_FORMAT_UNSIGNED_INT8, 1};
  DRIVER(cuArrayCreate(&array, &extent), CUDA_SUCCESS);
  char host[65 * 5] = {};
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host;
  copy.srcPitch = 64;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  copy.WidthInBytes = 64;
  copy.Height = 5;  // one row too many
  DRIVER(cuMemcpy2D(&copy), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuCtxSynchronize(), CUDA_SUCCESS);
  DRIVER(cuArrayDestroy(array), CUDA_SUCCESS);

  // Names of no symbol, in various forms.
  const char image[] = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry nothing() { ret; }\n";
  CUmodule module;
  CUfunction function;
  DRIVER(cuModuleLoadData(&module, image), CUDA_SUCCESS);
  DRIVER(cuModuleGetFunction(&function, module, ""), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuModuleGetFunction(&function, module, "other"), CUDA_ERROR_NOT_FOUND);
  DRIVER(cuModuleGetFunction(&function, module, "nothing"), CUDA_SUCCESS);

  // A launch with attributes but no list of them: the function comes first.
  CUlaunchConfig launch{};
  launch.gridDimX = launch.gridDimY = launch.gridDimZ = launch.blockDimX = launch.blockDimY = launch.blockDimZ = 1;
  launch.numAttrs = 1;
  DRIVER(cuLaunchKernelEx(&launch, function, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuLaunchKernelEx(&launch, nullptr, nullptr, nullptr), CUDA_ERROR_INVALID_HANDLE);
  DRIVER(cuModuleUnload(module), CUDA_SUCCESS);

  // A library's module, unknown flags, and mistakes without a current context.
  CUlibrary library;
  CUmodule part;
  CUgraph empty;
  CUgraphExec unmade;
  CUcontext current;
  CUdeviceptr address;
  size_t bytes;
  constexpr unsigned kUnknownFlag = 0x8000;
  const auto callback = [](CUstream, CUresult, void*) {};
  DRIVER(cuLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0), CUDA_SUCCESS);
  DRIVER(cuLibraryGetModule(&part, library), CUDA_SUCCESS);
  DRIVER(cuModuleUnload(part), CUDA_ERROR_NOT_PERMITTED);
  DRIVER(cuGraphCreate(&empty, 0), CUDA_SUCCESS);
  DRIVER(cuGraphInstantiateWithFlags(&unmade, empty, kUnknownFlag), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuCtxGetCurrent(&current), CUDA_SUCCESS);
  DRIVER(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  DRIVER(cuGraphInstantiateWithFlags(&unmade, empty, kUnknownFlag), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuStreamAddCallback(nullptr, callback, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuStreamAddCallback(nullptr, nullptr, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuLaunchKernelEx(nullptr, function, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuLibraryGetGlobal(&address, &bytes, library, nullptr), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuLibraryGetGlobal(&address, &bytes, library, "nothing"), CUDA_ERROR_INVALID_CONTEXT);
  DRIVER(cuCtxSetCurrent(current), CUDA_SUCCESS);
  DRIVER(cuGraphDestroy(empty), CUDA_SUCCESS);
  DRIVER(cuLibraryUnload(library), CUDA_SUCCESS);
}

// Returns the first version of a function that newer versions have replaced (driver 580).
template <class Function>
Function first_version(const char* name) {
  auto function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  if (function) return function;
  std::printf("there is no %s\n", name);
  std::exit(1);
}

// A handle or an address names the context of a call, so that some calls need no current one; and some mistakes come
// before the missing context (as measured on driver 580).
void calls_without_a_current_context() {
  constexpr size_t kBytes = 4096;
  const char image[] = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry nothing() { ret; }\n";
  CUcontext context;
  CUmodule module, found = nullptr, part;
  CUlibrary library;
  CUfunction function, again = nullptr;
  CUstream stream;
  CUmemoryPool pool;
  CUdeviceptr memory, begin = 0, ordered = 0;
  CUdevice device = -1;
  unsigned count = 0;
  int threads = 0;
  size_t bytes = 0;
  DRIVER(cuCtxGetCurrent(&context), CUDA_SUCCESS);
  DRIVER(cuCtxGetDevice(&device), CUDA_SUCCESS);
  DRIVER(cuModuleLoadData(&module, image), CUDA_SUCCESS);
  DRIVER(cuModuleGetFunction(&function, module, "nothing"), CUDA_SUCCESS);
  DRIVER(cuLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0), CUDA_SUCCESS);
  DRIVER(cuLibraryGetModule(&part, library), CUDA_SUCCESS);
  DRIVER(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  DRIVER(cuDeviceGetDefaultMemPool(&pool, device), CUDA_SUCCESS);
  DRIVER(cuMemAlloc(&memory, kBytes), CUDA_SUCCESS);
  DRIVER(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);

  DRIVER(cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function), CUDA_SUCCESS);
  HOLDS(threads > 0);
  DRIVER(cuFuncGetModule(&found, function), CUDA_SUCCESS);
  HOLDS(found == module);
  DRIVER(cuModuleGetFunction(&again, module, "nothing"), CUDA_SUCCESS);
  HOLDS(again == function);
  DRIVER(cuModuleGetFunctionCount(&count, module), CUDA_SUCCESS);
  HOLDS(count == 1);
  DRIVER(cuMemGetAddressRange(&begin, &bytes, memory + 3), CUDA_SUCCESS);
  HOLDS(begin == memory && bytes == kBytes);
  DRIVER(cuMemAllocAsync(&ordered, kBytes, stream), CUDA_SUCCESS);
  DRIVER(cuMemFreeAsync(ordered, stream), CUDA_SUCCESS);
  DRIVER(cuStreamSynchronize(stream), CUDA_SUCCESS);

  DRIVER(cuMemAllocAsync(nullptr, kBytes, stream), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuModuleGetFunction(&again, module, nullptr), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuModuleGetGlobal(&begin, &bytes, module, nullptr), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuModuleGetGlobal(&begin, &bytes, nullptr, "nothing"), CUDA_ERROR_INVALID_HANDLE);
  DRIVER(cuModuleGetGlobal(&begin, &bytes, module, "nothing"), CUDA_ERROR_INVALID_CONTEXT);
  DRIVER(cuCtxGetDevice_v2(nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuCtxGetDevice_v2(&device, nullptr), CUDA_ERROR_INVALID_CONTEXT);
  using Prefetch = CUresult (*)(CUdeviceptr, size_t, CUdevice, CUstream);
  DRIVER(first_version<Prefetch>("cuMemPrefetchAsync")(memory, 1, device, stream), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuMemAllocFromPoolAsync(nullptr, kBytes, pool, stream), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuMemAllocFromPoolAsync(&ordered, kBytes, nullptr, stream), CUDA_ERROR_INVALID_VALUE);
  CUlaunchConfig launch{};
  launch.gridDimX = launch.gridDimY = launch.gridDimZ = launch.blockDimX = launch.blockDimY = launch.blockDimZ = 1;
  DRIVER(cuLaunchKernelEx(&launch, nullptr, nullptr, nullptr), CUDA_ERROR_INVALID_HANDLE);
  DRIVER(cuLaunchKernelEx(&launch, function, nullptr, nullptr), CUDA_ERROR_INVALID_CONTEXT);
  DRIVER(cuModuleUnload(part), CUDA_ERROR_NOT_PERMITTED);
  DRIVER(cuModuleUnload(module), CUDA_ERROR_INVALID_CONTEXT);

  DRIVER(cuCtxSetCurrent(context), CUDA_SUCCESS);
  DRIVER(cuMemFree(memory), CUDA_SUCCESS);
  DRIVER(cuStreamDestroy(stream), CUDA_SUCCESS);
  DRIVER(cuLibraryUnload(library), CUDA_SUCCESS);
  DRIVER(cuModuleUnload(module), CUDA_SUCCESS);
}

// A call that the calling thread's capture forbids invalidates it; calls that create and destroy streams and events do
// not.
template <class Call>
void forbidden(int line, const char* name, Call call) {
  cudaStream_t capturing;
  cudaGraph_t graph = nullptr;
  RUNTIME(cudaStreamCreateWithFlags(&capturing, cudaStreamNonBlocking), cudaSuccess);
  RUNTIME(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  g_line = line;
  compare(line, name, error_name(call()), "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED");
  RUNTIME(cudaStreamEndCapture(capturing, &graph), cudaErrorStreamCaptureInvalidated);
  RUNTIME(cudaStreamDestroy(capturing), cudaSuccess);
}
#define FORBIDDEN(call) forbidden(__LINE__, #call, [&] { return call; })

void captures_forbid() {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemoryPool pool, none;
  CUstream other;
  CUgraph graph;
  CUgraphExec exec, again;
  CUdeviceptr memory, managed, more;
  CUmodule module;
  int flag;
  DRIVER(cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
  DRIVER(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  DRIVER(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
  DRIVER(cuGraphInstantiate(&exec, graph, 0), CUDA_SUCCESS);
  DRIVER(cuMemAllocAsync(&memory, 64, other), CUDA_SUCCESS);
  DRIVER(cuMemAllocManaged(&managed, 64, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  DRIVER(
      cuModuleLoadData(&module, ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry nothing() { ret; }\n"),
      CUDA_SUCCESS);
  FORBIDDEN(cuStreamSynchronize(other));
  FORBIDDEN(cuGraphInstantiate(&again, graph, 0));
  FORBIDDEN(cuGraphExecDestroy(exec));
  FORBIDDEN(cuGraphExecDestroy(nullptr));
  FORBIDDEN(cuMemAllocAsync(&more, 0, other));
  FORBIDDEN(cuMemAllocAsync(&more, 64, other));
  FORBIDDEN(cuMemAllocFromPoolAsync(&more, 64, pool, other));
  FORBIDDEN(cuMemFreeAsync(memory, other));
  FORBIDDEN(cuMemPoolCreate(&none, &properties));
  FORBIDDEN(cuMemPoolDestroy(pool));
  FORBIDDEN(cuMemPoolTrimTo(pool, 0));
  FORBIDDEN(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &flag));
  FORBIDDEN(cuMemPoolExportToShareableHandle(&flag, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  FORBIDDEN(cuMemPoolImportFromShareableHandle(&none, nullptr, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  FORBIDDEN(cuMemSetMemPool(&properties.location, CU_MEM_ALLOCATION_TYPE_PINNED, pool));
  FORBIDDEN(cuCtxSetSharedMemConfig(CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE));
  FORBIDDEN(cuMemAdvise(managed, 64, CU_MEM_ADVISE_SET_READ_MOSTLY, CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, 0}));
  FORBIDDEN(cuModuleUnload(module));
  DRIVER(cuMemFreeAsync(memory, other), CUDA_SUCCESS);
  DRIVER(cuMemFree(managed), CUDA_SUCCESS);
  DRIVER(cuModuleUnload(module), CUDA_SUCCESS);
  DRIVER(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  DRIVER(cuGraphDestroy(graph), CUDA_SUCCESS);
  DRIVER(cuStreamDestroy(other), CUDA_SUCCESS);
  DRIVER(cuMemPoolDestroy(pool), CUDA_SUCCESS);
}

// An impossible launch invalidates a capture, too.
void captures_refuse_impossible_launches() {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaFunction_t function;
  int* data;
  RUNTIME(cudaGetFuncBySymbol(&function, reinterpret_cast<const void*>(add_one)), cudaSuccess);
  RUNTIME(cudaMalloc(&data, 4 * sizeof(int)), cudaSuccess);
  RUNTIME(cudaStreamCreate(&stream), cudaSuccess);
  RUNTIME(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  void* parameters[] = {&data};
  DRIVER(cuLaunchKernel(function, 0, 1, 1, 4, 1, 1, 0, stream, parameters, nullptr), CUDA_ERROR_INVALID_VALUE);
  cudaStreamCaptureStatus status;
  RUNTIME(cudaStreamIsCapturing(stream, &status), cudaSuccess);
  HOLDS(status == cudaStreamCaptureStatusInvalidated);
  RUNTIME(cudaMemsetAsync(data, 0, sizeof(int), stream), cudaErrorStreamCaptureInvalidated);
  RUNTIME(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  RUNTIME(cudaGetLastError(), cudaErrorStreamCaptureInvalidated);
  RUNTIME(cudaStreamDestroy(stream), cudaSuccess);
  RUNTIME(cudaFree(data), cudaSuccess);
}

// A capture that ends with its context forbids nothing any more.
void captures_end_with_their_context() {
  CUcontext before, context;
  CUstream stream;
  CUdeviceptr memory;
  DRIVER(cuCtxGetCurrent(&before), CUDA_SUCCESS);
  DRIVER(cuCtxCreate(&context, nullptr, 0, 0), CUDA_SUCCESS);
  DRIVER(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  DRIVER(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
  DRIVER(cuCtxDestroy(context), CUDA_SUCCESS);
  DRIVER(cuCtxSetCurrent(before), CUDA_SUCCESS);
  DRIVER(cuMemAlloc(&memory, 64), CUDA_SUCCESS);
  DRIVER(cuMemFree(memory), CUDA_SUCCESS);
}

// Nor does a capture that ends with its stream.
void captures_end_with_their_stream() {
  CUstream stream;
  DRIVER(cuStreamCreate(&stream, CU_STREAM_DEFAULT), CUDA_SUCCESS);
  DRIVER(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  DRIVER(cuStreamDestroy(stream), CUDA_SUCCESS);
  DRIVER(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  DRIVER(cuCtxSynchronize(), CUDA_SUCCESS);
}

void null_is_told_by_each_call_in_its_way() {
  const char* name;
  size_t offset, bytes;
  CUmodule module;
  DRIVER(cuFuncGetName(&name, nullptr), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuFuncGetModule(&module, nullptr), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuFuncGetParamInfo(nullptr, 0, &offset, &bytes), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuKernelGetName(&name, nullptr), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuCtxDestroy(nullptr), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuCtxRecordEvent(nullptr, nullptr), CUDA_ERROR_INVALID_CONTEXT);
  DRIVER(cuCtxWaitEvent(nullptr, nullptr), CUDA_ERROR_INVALID_CONTEXT);
  CUmemPoolProps properties{};
  CUmemoryPool pool;
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 77};
  DRIVER(cuMemPoolCreate(&pool, &properties), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuMemPoolImportFromShareableHandle(&pool, nullptr, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
         CUDA_ERROR_INVALID_VALUE);
}

// A name is cut to what fits, an identifier is not; and a name's length has no sign.
void texts_and_their_lengths() {
  char text[256] = {};
  DRIVER(cuDeviceGetName(text, 3, 0), CUDA_SUCCESS);
  HOLDS(std::strlen(text) == 2);
  DRIVER(cuDeviceGetName(text, -1, 0), CUDA_SUCCESS);
  HOLDS(std::strlen(text) > 2);
  // A length of 0 crashes NVIDIA's driver 580.
  DRIVER(cuDeviceGetPCIBusId(text, 3, 0), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuDeviceGetPCIBusId(text, sizeof "0000:00:00.0", 0), CUDA_SUCCESS);
  HOLDS(std::strlen(text) == std::strlen("0000:00:00.0"));
}

void host_memory() {
  void* memory = &memory;
  unsigned flags = 0;
  DRIVER(cuMemHostAlloc(&memory, 0, CU_MEMHOSTALLOC_DEVICEMAP), CUDA_SUCCESS);
  HOLDS(memory == nullptr);
  DRIVER(cuMemHostAlloc(&memory, 100, CU_MEMHOSTALLOC_PORTABLE), CUDA_SUCCESS);
  DRIVER(cuMemHostGetFlags(&flags, memory), CUDA_SUCCESS);
  HOLDS(flags == (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  DRIVER(cuMemFreeHost(memory), CUDA_SUCCESS);
  static char own[3 * 4096];
  DRIVER(cuMemHostRegister(own, sizeof own, 0), CUDA_SUCCESS);
  DRIVER(cuMemHostGetFlags(&flags, own), CUDA_SUCCESS);
  DRIVER(cuMemHostUnregister(own + 100), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuMemHostUnregister(own), CUDA_SUCCESS);
  DRIVER(cuMemHostUnregister(own), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

// A blocking call has written pinned memory when it returns, by each of the memory's addresses.
void pinned_memory_is_written_when_a_blocking_call_returns() {
  constexpr size_t kBytes = 64;
  unsigned char values[kBytes], *host;
  CUdeviceptr device, other, base;
  size_t bytes = 0;
  auto all = [&](int value) {
    for (size_t i = 0; i < kBytes; ++i)
      if (host[i] != value) return false;
    return true;
  };
  DRIVER(cuMemAlloc(&other, kBytes), CUDA_SUCCESS);
  DRIVER(cuMemHostAlloc(reinterpret_cast<void**>(&host), kBytes, CU_MEMHOSTALLOC_DEVICEMAP), CUDA_SUCCESS);
  DRIVER(cuMemHostGetDevicePointer(&device, host, 0), CUDA_SUCCESS);
  DRIVER(cuMemGetAddressRange(&base, &bytes, device + 3), CUDA_SUCCESS);
  HOLDS(base == device && bytes == kBytes);
  DRIVER(cuMemsetD8(device, 1, kBytes), CUDA_SUCCESS);
  HOLDS(all(1));
  DRIVER(cuMemsetD16(device, 0x0202, kBytes / 2), CUDA_SUCCESS);
  HOLDS(all(2));
  DRIVER(cuMemsetD32(device, 0x03030303, kBytes / 4), CUDA_SUCCESS);
  HOLDS(all(3));
  DRIVER(cuMemsetD2D8(device, kBytes / 2, 4, kBytes / 2, 2), CUDA_SUCCESS);
  HOLDS(all(4));
  std::memset(values, 5, kBytes);
  DRIVER(cuMemcpyHtoD(device, values, kBytes), CUDA_SUCCESS);
  HOLDS(all(5));
  DRIVER(cuMemsetD8(other, 6, kBytes), CUDA_SUCCESS);
  DRIVER(cuMemcpyDtoD(device, other, kBytes), CUDA_SUCCESS);
  HOLDS(all(6));
  // The device reads the program's later writes, too.
  std::memset(host, 7, kBytes);
  DRIVER(cuMemcpyDtoH(values, device, kBytes), CUDA_SUCCESS);
  HOLDS(values[0] == 7 && values[kBytes - 1] == 7);
  DRIVER(cuMemFreeHost(host), CUDA_SUCCESS);
  DRIVER(cuMemFree(other), CUDA_SUCCESS);
}

// The address is as in the heap of a program linked to a fixed address.
void a_little_memory_at_a_low_address_is_registered() {
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
  HOLDS(page != MAP_FAILED);
  int* words = static_cast<int*>(page) + 4;
  CUdeviceptr device = 0;
  words[0] = words[1] = 41;
  DRIVER(cuMemHostRegister(words, 2 * sizeof *words, CU_MEMHOSTREGISTER_DEVICEMAP), CUDA_SUCCESS);
  DRIVER(cuMemHostGetDevicePointer(&device, words, 0), CUDA_SUCCESS);
  HOLDS(device == reinterpret_cast<CUdeviceptr>(words));
  add_one<<<1, 2>>>(reinterpret_cast<int*>(device));
  RUNTIME(cudaDeviceSynchronize(), cudaSuccess);
  HOLDS(words[0] == 42 && words[1] == 42);
  DRIVER(cuMemHostUnregister(words), CUDA_SUCCESS);
  munmap(page, 4096);
}

void first_versions() {
  CUcontext current;
  CUdeviceptr memory;
  DRIVER(cuCtxGetCurrent(&current), CUDA_SUCCESS);
  DRIVER(cuMemAlloc(&memory, 64), CUDA_SUCCESS);
  auto push = first_version<CUresult (*)(CUcontext)>("cuCtxPushCurrent");
  DRIVER(push(current), CUDA_ERROR_INVALID_CONTEXT);

  int offered = -1;
  DRIVER(cuDeviceGetAttribute(&offered, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, 0), CUDA_SUCCESS);
  const CUresult answered = offered ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
  using Operate32 = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
  using Operate64 = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t, unsigned);
  DRIVER(first_version<Operate32>("cuStreamWriteValue32")(nullptr, memory, 7, 0), answered);
  DRIVER(first_version<Operate64>("cuStreamWriteValue64")(nullptr, memory, 7, 0), answered);
  DRIVER(first_version<Operate32>("cuStreamWaitValue32")(nullptr, memory, 0, 0), answered);
  DRIVER(first_version<Operate64>("cuStreamWaitValue64")(nullptr, memory, 0, 0), answered);
  FORBIDDEN(first_version<Operate32>("cuStreamWriteValue32")(nullptr, memory, 7, 0));
  FORBIDDEN(first_version<Operate64>("cuStreamWriteValue64")(nullptr, memory, 7, 0));
  FORBIDDEN(first_version<Operate32>("cuStreamWaitValue32")(nullptr, memory, 0, 0));
  FORBIDDEN(first_version<Operate64>("cuStreamWaitValue64")(nullptr, memory, 0, 0));
  DRIVER(cuMemFree(memory), CUDA_SUCCESS);

  static char own[2 * 4096];
  auto register_memory = first_version<CUresult (*)(void*, size_t, unsigned)>("cuMemHostRegister");
  DRIVER(register_memory(own, sizeof own, 128), CUDA_SUCCESS);
  DRIVER(cuMemHostRegister(own, sizeof own, 128), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuMemHostRegister(own, sizeof own, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  DRIVER(cuMemHostUnregister(own), CUDA_SUCCESS);
}

// Of two mistakes in one call the driver reports a certain one, and some calls that look wrong are valid.
void the_mistake_that_is_told() {
  CUevent from, to;
  CUstream stream;
  CUgreenCtx green;
  int clusters;
  CUDA_ARRAY_MEMORY_REQUIREMENTS requirements;
  CUDA_ARRAY_SPARSE_PROPERTIES sparse;
  CUlaunchConfig shape{};
  shape.gridDimX = shape.gridDimY = shape.gridDimZ = shape.blockDimX = shape.blockDimY = shape.blockDimZ = 1;
  DRIVER(cuEventCreate(&from, 0), CUDA_SUCCESS);
  DRIVER(cuEventCreate(&to, 0), CUDA_SUCCESS);
  DRIVER(cuEventElapsedTime(nullptr, from, to), CUDA_ERROR_INVALID_HANDLE);
  DRIVER(cuEventDestroy(from), CUDA_SUCCESS);
  DRIVER(cuEventDestroy(to), CUDA_SUCCESS);
  DRIVER(cuStreamCreate(&stream, CU_STREAM_DEFAULT), CUDA_SUCCESS);
  DRIVER(cuStreamGetCtx_v2(stream, nullptr, &green), CUDA_SUCCESS);
  HOLDS(green == nullptr);
  CUcontext current, its;
  DRIVER(cuCtxGetCurrent(&current), CUDA_SUCCESS);
  DRIVER(cuStreamGetCtx_v2(stream, &its, nullptr), CUDA_SUCCESS);
  HOLDS(its == current);
  DRIVER(cuOccupancyMaxActiveClusters(&clusters, nullptr, &shape), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuOccupancyMaxPotentialClusterSize(&clusters, nullptr, &shape), CUDA_ERROR_INVALID_VALUE);
  CUmemoryPool pool;
  int supported = -1;
  DRIVER(cuDeviceGetMemPool(&pool, 77), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuDeviceGetExecAffinitySupport(&supported, static_cast<CUexecAffinityType>(99), 0), CUDA_SUCCESS);
  HOLDS(supported == 0);
  DRIVER(cuArrayGetMemoryRequirements(&requirements, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuArrayGetSparseProperties(&sparse, nullptr), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuMipmappedArrayGetMemoryRequirements(&requirements, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuMipmappedArrayGetSparseProperties(&sparse, nullptr), CUDA_ERROR_INVALID_VALUE);
  DRIVER(cuMemPrefetchAsync(0, 64, CUmemLocation{CU_MEM_LOCATION_TYPE_DEVICE, 77}, 0, stream),
         CUDA_ERROR_INVALID_VALUE);
  auto mode = static_cast<CUstreamCaptureMode>(99);
  DRIVER(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  HOLDS(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
  DRIVER(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  HOLDS(mode == static_cast<CUstreamCaptureMode>(99));
  DRIVER(cuStreamDestroy(stream), CUDA_SUCCESS);
}

// Nodes of a graph may name any address, and an instantiation without an upload ignores its stream.
void captures_do_not_look() {
  CUstream stream;
  CUgraph captured, other;
  CUgraphExec exec;
  DRIVER(cuStreamCreate(&stream, CU_STREAM_DEFAULT), CUDA_SUCCESS);
  DRIVER(cuGraphCreate(&other, 0), CUDA_SUCCESS);
  DRIVER(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  DRIVER(cuMemsetD32Async(0, 3, 256, stream), CUDA_SUCCESS);
  CUDA_GRAPH_INSTANTIATE_PARAMS parameters{};
  DRIVER(cuGraphInstantiateWithParams(&exec, other, &parameters), CUDA_SUCCESS);
  HOLDS(parameters.result_out == CUDA_GRAPH_INSTANTIATE_SUCCESS && parameters.hUploadStream == nullptr);
  DRIVER(cuGraphExecDestroy(exec), CUDA_SUCCESS);
  size_t nodes = 0;
  DRIVER(cuStreamEndCapture(stream, &captured), CUDA_SUCCESS);
  DRIVER(cuGraphGetNodes(captured, nullptr, &nodes), CUDA_SUCCESS);
  HOLDS(nodes == 1);
  DRIVER(cuGraphDestroy(captured), CUDA_SUCCESS);
  DRIVER(cuGraphDestroy(other), CUDA_SUCCESS);
  DRIVER(cuStreamDestroy(stream), CUDA_SUCCESS);
}

struct Part {
  const char* name;
  void (*run)();
};
#define PART(function) \
  { #function, function }
const Part kParts[] = {
    PART(capture_into_a_graph_ends_without_one),
    PART(memory_of_a_graph_is_freed_and_allocated_again),
    PART(virtual_memory_needs_no_context),
    PART(nothing_is_no_error),
    PART(errors_are_the_drivers),
    PART(calls_without_a_current_context),
    PART(captures_forbid),
    PART(captures_refuse_impossible_launches),
    PART(captures_end_with_their_context),
    PART(captures_end_with_their_stream),
    PART(null_is_told_by_each_call_in_its_way),
    PART(texts_and_their_lengths),
    PART(host_memory),
    PART(pinned_memory_is_written_when_a_blocking_call_returns),
    PART(a_little_memory_at_a_low_address_is_registered),
    PART(first_versions),
    PART(the_mistake_that_is_told),
    PART(captures_do_not_look),
};

}  // namespace

int main(int argc, char** argv) {
  struct sigaction action {};
  action.sa_handler = crashed;
  action.sa_flags = int(SA_RESETHAND);
  sigaction(SIGSEGV, &action, nullptr);
  retain_primary();
  RUNTIME(cudaFree(nullptr), cudaSuccess);
  for (const Part& part : kParts) {
    bool wanted = argc == 1;
    for (int i = 1; i < argc; ++i) wanted |= std::strcmp(argv[i], part.name) == 0;
    if (wanted) part.run();
  }
  std::printf("%s\n", g_wrong ? "FAILED" : "PASSED");
  return g_wrong != 0;
}
