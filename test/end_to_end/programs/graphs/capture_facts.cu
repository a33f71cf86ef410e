// Prints a line for each fact: a driver's answers during a capture, the capture's state after them, and the ends of
// captures. capture_facts.rules has driver 580's answers.
#include <cuda.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <thread>

#include "../facts.hpp"

namespace {

constexpr size_t kBytes = 4096, kLarge = 2 << 20;

CUcontext g_context;
CUdeviceptr g_memory, g_second;
CUarray g_array;
CUstream g_aside;  // takes no part in a capture
CUevent g_before;  // recorded before any capture
char* g_pinned;
alignas(4096) char g_plain[kLarge];

void set_up() {
  retain_primary();
  OK(cuCtxGetCurrent(&g_context));
  OK(cuMemAlloc(&g_memory, kLarge));
  OK(cuMemAlloc(&g_second, kLarge));
  OK(cuMemsetD8(g_memory, 1, kLarge));
  void* pinned = nullptr;
  OK(cuMemHostAlloc(&pinned, kLarge, 0));
  g_pinned = static_cast<char*>(pinned);
  CUDA_ARRAY_DESCRIPTOR shape{};
  shape.Width = shape.Height = 64;
  shape.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  shape.NumChannels = 1;
  OK(cuArrayCreate(&g_array, &shape));
  OK(cuStreamCreate(&g_aside, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&g_before, CU_EVENT_DISABLE_TIMING));
  OK(cuEventRecord(g_before, g_aside));
  OK(cuCtxSynchronize());
}

struct Call {
  const char* name;
  std::function<CUresult()> make;
};

CUDA_MEMCPY2D rows(CUmemorytype from, CUmemorytype to, bool array = false) {
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = from;
  copy.dstMemoryType = to;
  copy.srcHost = copy.dstHost = g_plain;
  copy.srcDevice = g_memory;
  copy.dstDevice = g_second;
  if (array) copy.srcArray = copy.dstArray = g_array;
  copy.srcPitch = copy.dstPitch = 64;
  copy.WidthInBytes = 32;
  copy.Height = 8;
  return copy;
}

CUresult box(CUmemorytype from, CUmemorytype to) {
  const CUDA_MEMCPY2D flat = rows(from, to);
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = flat.srcMemoryType;
  copy.dstMemoryType = flat.dstMemoryType;
  copy.srcHost = flat.srcHost;
  copy.dstHost = flat.dstHost;
  copy.srcDevice = flat.srcDevice;
  copy.dstDevice = flat.dstDevice;
  copy.srcPitch = copy.dstPitch = 64;
  copy.srcHeight = copy.dstHeight = 8;
  copy.WidthInBytes = 32;
  copy.Height = 8;
  copy.Depth = 2;
  return cuMemcpy3D(&copy);
}

CUresult copy_rows(CUmemorytype from, CUmemorytype to, bool array = false) {
  const CUDA_MEMCPY2D copy = rows(from, to, array);
  return cuMemcpy2D(&copy);
}

std::vector<Call> calls() {
  constexpr CUmemorytype kHost = CU_MEMORYTYPE_HOST, kDevice = CU_MEMORYTYPE_DEVICE, kArray = CU_MEMORYTYPE_ARRAY;
  auto word = [](const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); };
  return {
      {"HtoD, nothing", [] { return cuMemcpyHtoD(g_memory, g_plain, 0); }},
      {"HtoD, pageable", [] { return cuMemcpyHtoD(g_memory, g_plain, 64); }},
      {"HtoD, pageable, large", [] { return cuMemcpyHtoD(g_memory, g_plain, kLarge); }},
      {"HtoD, pinned", [] { return cuMemcpyHtoD(g_memory, g_pinned, kBytes); }},
      {"DtoH, pageable", [] { return cuMemcpyDtoH(g_plain, g_memory, 64); }},
      {"DtoH, pageable, large", [] { return cuMemcpyDtoH(g_plain, g_memory, kLarge); }},
      {"DtoH, pinned", [] { return cuMemcpyDtoH(g_pinned, g_memory, kBytes); }},
      {"DtoD", [] { return cuMemcpyDtoD(g_second, g_memory, kBytes); }},
      {"peer copy on one device", [] { return cuMemcpyPeer(g_second, g_context, g_memory, g_context, kBytes); }},
      {"unified, to the device", [=] { return cuMemcpy(g_memory, word(g_plain), 64); }},
      {"unified, from the device", [=] { return cuMemcpy(word(g_plain), g_memory, 64); }},
      {"unified, on the host", [=] { return cuMemcpy(word(g_plain), word(g_plain + 128), 64); }},
      {"unified, pinned on the host", [=] { return cuMemcpy(word(g_pinned), word(g_pinned + 128), 64); }},
      {"unified, on the device", [] { return cuMemcpy(g_second, g_memory, 64); }},
      {"2D, HtoD", [] { return copy_rows(kHost, kDevice); }},
      {"2D, DtoH", [] { return copy_rows(kDevice, kHost); }},
      {"2D, HtoH", [] { return copy_rows(kHost, kHost); }},
      {"2D, DtoD", [] { return copy_rows(kDevice, kDevice); }},
      {"2D, host to array", [] { return copy_rows(kHost, kArray, true); }},
      {"2D, array to device", [] { return copy_rows(kArray, kDevice, true); }},
      {"3D, HtoD", [] { return box(kHost, kDevice); }},
      {"3D, DtoH", [] { return box(kDevice, kHost); }},
      {"3D, DtoD", [] { return box(kDevice, kDevice); }},
      {"HtoA", [] { return cuMemcpyHtoA(g_array, 0, g_plain, 32); }},
      {"AtoH", [] { return cuMemcpyAtoH(g_plain, g_array, 0, 32); }},
      {"DtoA", [] { return cuMemcpyDtoA(g_array, 0, g_memory, 32); }},
      {"AtoD", [] { return cuMemcpyAtoD(g_memory, g_array, 0, 32); }},
      {"AtoA", [] { return cuMemcpyAtoA(g_array, 0, g_array, 32, 32); }},
      {"memset", [] { return cuMemsetD8(g_memory, 0, 64); }},
      {"memset in the NULL stream", [] { return cuMemsetD8Async(g_memory, 0, 64, nullptr); }},
      {"memset aside", [] { return cuMemsetD8Async(g_memory, 0, 64, g_aside); }},
      {"HtoD in the NULL stream", [] { return cuMemcpyHtoDAsync(g_memory, g_plain, 64, nullptr); }},
      {"DtoH in the NULL stream", [] { return cuMemcpyDtoHAsync(g_plain, g_memory, 64, nullptr); }},
      {"DtoH aside", [] { return cuMemcpyDtoHAsync(g_plain, g_memory, 64, g_aside); }},
      {"HtoD aside, large", [] { return cuMemcpyHtoDAsync(g_memory, g_plain, kLarge, g_aside); }},
      {"waiting for the NULL stream", [] { return cuStreamSynchronize(nullptr); }},
      {"asking the NULL stream", [] { return cuStreamQuery(nullptr); }},
      {"waiting for a stream aside", [] { return cuStreamSynchronize(g_aside); }},
      {"asking a stream aside", [] { return cuStreamQuery(g_aside); }},
      {"waiting for an event", [] { return cuEventSynchronize(g_before); }},
      {"asking an event", [] { return cuEventQuery(g_before); }},
      {"recording an event in the NULL stream", [] { return cuEventRecord(g_before, nullptr); }},
      {"the NULL stream waits for an event", [] { return cuStreamWaitEvent(nullptr, g_before, 0); }},
      {"waiting for the context", [] { return cuCtxSynchronize(); }},
      {"asking for free memory",
       [] {
         size_t free = 0, total = 0;
         return cuMemGetInfo(&free, &total);
       }},
      {"creating a stream",
       [] {
         CUstream stream;
         return cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
       }},
      {"creating an event",
       [] {
         CUevent event;
         return cuEventCreate(&event, 0);
       }},
      {"memory in order of a stream aside",
       [] {
         CUdeviceptr made;
         return cuMemAllocAsync(&made, 64, g_aside);
       }},
  };
}

// Each call beside each kind of capture.
void beside_captures(unsigned stream_flags, bool valid) {
  set_up();
  struct {
    const char* name;
    CUstreamCaptureMode mode;
  } const kModes[] = {{"global", CU_STREAM_CAPTURE_MODE_GLOBAL},
                      {"thread-local", CU_STREAM_CAPTURE_MODE_THREAD_LOCAL},
                      {"relaxed", CU_STREAM_CAPTURE_MODE_RELAXED}};
  CUstream stream;
  OK(cuStreamCreate(&stream, stream_flags));
  for (const Call& call : calls()) {
    for (const auto& [mode_name, mode] : kModes) {
      for (const bool own : {true, false}) {
        OK(cuStreamBeginCapture(stream, mode));
        if (!valid) static_cast<void>(cuStreamSynchronize(stream));
        CUresult result = CUDA_SUCCESS;
        if (own) {
          result = call.make();
        } else {
          std::thread([&] {
            OK(cuCtxSetCurrent(g_context));
            result = call.make();
          }).join();
        }
        const std::string after = status_text(stream);
        CUgraph graph = nullptr;
        const CUresult end = cuStreamEndCapture(stream, &graph);
        std::printf("%s, %s, %s thread: %s, then %s, ends %s\n", call.name, mode_name, own ? "own" : "other",
                    error_name(result), after.c_str(), error_name(end));
        if (graph) OK(cuGraphDestroy(graph));
      }
    }
  }
}

// Calls that captures forbid, with a wrong argument: the error, and whether it invalidates the capture.
std::vector<Call> wrong_calls() {
  static CUDA_ARRAY_DESCRIPTOR shape{};
  static CUDA_ARRAY3D_DESCRIPTOR shape_3d{};
  static CUDA_RESOURCE_DESC resource{};
  static CUDA_TEXTURE_DESC how{};
  static CUdeviceptr address;
  static CUarray array;
  static CUmipmappedArray mipmap;
  static CUtexObject texture;
  static CUsurfObject surface;
  shape.Width = shape.Height = 16;
  shape.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  shape.NumChannels = 3;  // an invalid format
  shape_3d.Width = shape_3d.Height = 16;
  shape_3d.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  shape_3d.NumChannels = 3;
  resource.resType = CU_RESOURCE_TYPE_ARRAY;
  return {
      {"cuArrayCreate without a result", [] { return cuArrayCreate(nullptr, &shape); }},
      {"cuArrayCreate without a description", [] { return cuArrayCreate(&array, nullptr); }},
      {"cuArrayCreate of three channels", [] { return cuArrayCreate(&array, &shape); }},
      {"cuArray3DCreate of three channels", [] { return cuArray3DCreate(&array, &shape_3d); }},
      {"cuArrayDestroy of NULL", [] { return cuArrayDestroy(nullptr); }},
      {"cuMipmappedArrayCreate without a result", [] { return cuMipmappedArrayCreate(nullptr, &shape_3d, 1); }},
      {"cuMipmappedArrayCreate of three channels", [] { return cuMipmappedArrayCreate(&mipmap, &shape_3d, 1); }},
      {"cuMipmappedArrayDestroy of NULL", [] { return cuMipmappedArrayDestroy(nullptr); }},
      {"cuTexObjectCreate without a result", [] { return cuTexObjectCreate(nullptr, &resource, &how, nullptr); }},
      {"cuTexObjectCreate without a resource", [] { return cuTexObjectCreate(&texture, nullptr, &how, nullptr); }},
      {"cuTexObjectCreate of no array", [] { return cuTexObjectCreate(&texture, &resource, &how, nullptr); }},
      {"cuTexObjectDestroy of NULL", [] { return cuTexObjectDestroy(0); }},
      {"cuSurfObjectCreate of no array", [] { return cuSurfObjectCreate(&surface, &resource); }},
      {"cuSurfObjectDestroy of NULL", [] { return cuSurfObjectDestroy(0); }},
      {"cuMemAlloc without a result", [] { return cuMemAlloc(nullptr, 64); }},
      {"cuMemAlloc of nothing", [] { return cuMemAlloc(&address, 0); }},
      {"cuMemFree of no memory", [] { return cuMemFree(g_memory + 64); }},
      {"cuMemFreeHost of no memory", [] { return cuMemFreeHost(g_plain); }},
      {"cuMemHostAlloc without a result", [] { return cuMemHostAlloc(nullptr, 64, 0); }},
      {"cuMemHostAlloc with wrong flags",
       [] {
         void* made;
         return cuMemHostAlloc(&made, 64, 64);
       }},
      {"cuMemHostRegister of NULL", [] { return cuMemHostRegister(nullptr, 64, 0); }},
      {"cuMemHostUnregister of NULL", [] { return cuMemHostUnregister(nullptr); }},
      {"cuMemAllocPitch of elements of 3 bytes",
       [] {
         size_t pitch;
         return cuMemAllocPitch(&address, &pitch, 64, 4, 3);
       }},
      {"cuMemAllocManaged with wrong flags", [] { return cuMemAllocManaged(&address, 64, 9); }},
      {"cuCtxSetLimit of no limit", [] { return cuCtxSetLimit(CUlimit(99), 1); }},
      {"cuCtxSetCacheConfig of no choice", [] { return cuCtxSetCacheConfig(CUfunc_cache(99)); }},
      {"cuMemPoolDestroy of NULL", [] { return cuMemPoolDestroy(nullptr); }},
      {"cuStreamDestroy of NULL", [] { return cuStreamDestroy(nullptr); }},
      {"cuEventDestroy of NULL", [] { return cuEventDestroy(nullptr); }},
      {"cuModuleUnload of NULL", [] { return cuModuleUnload(nullptr); }},
      {"cuLibraryUnload of NULL", [] { return cuLibraryUnload(nullptr); }},
      {"cuModuleLoadData of nothing",
       [] {
         CUmodule module;
         return cuModuleLoadData(&module, "nothing");
       }},
      {"cuGraphDestroy of NULL", [] { return cuGraphDestroy(nullptr); }},
      {"cuMemcpyHtoD to no memory", [] { return cuMemcpyHtoD(0, g_plain, 64); }},
      {"cuMemcpyHtoD from NULL", [] { return cuMemcpyHtoD(g_memory, nullptr, 64); }},
      {"cuMemsetD16 of an odd address", [] { return cuMemsetD16(g_memory + 1, 0, 1); }},
      {"cuArrayGetDescriptor of NULL", [] { return cuArrayGetDescriptor(&shape, nullptr); }},
  };
}

void wrong_arguments(unsigned stream_flags) {
  set_up();
  CUstream stream;
  OK(cuStreamCreate(&stream, stream_flags));
  for (const Call& call : wrong_calls()) {
    const CUresult alone = call.make();
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    const CUresult result = call.make();
    const std::string after = status_text(stream);
    CUgraph graph = nullptr;
    const CUresult end = cuStreamEndCapture(stream, &graph);
    std::printf("%s: alone %s, beside a capture %s, then %s, ends %s\n", call.name, error_name(alone),
                error_name(result), after.c_str(), error_name(end));
    if (graph) OK(cuGraphDestroy(graph));
  }
}

// --- calls that make, change and end things, with right arguments

constexpr char kText[] = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry nothing() { ret; }\n";

// The objects of the calls, made for each call, since many calls end them.
struct Things {
  CUmodule module;
  CUlibrary library;
  CUfunction function;
  CUkernel kernel;
  CUstream stream;
  CUevent event, other_event;
  CUmemoryPool pool;
  CUgraph graph;
  CUgraphNode node;
  CUgraphExec executable;
  CUdeviceptr memory, reserved;
  CUmemGenericAllocationHandle physical;
  void* pinned;
  CUmipmappedArray mipmap;
  CUarray array;
  CUcontext context;
  CUmemPoolProps properties{};
  CUmemAllocationProp physical_properties{};
  CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUDA_ARRAY3D_DESCRIPTOR shape{};
};

constexpr size_t kGranule = 2 << 20;

Things make_things(bool with_context) {
  Things t{};
  OK(cuModuleLoadData(&t.module, kText));
  OK(cuModuleGetFunction(&t.function, t.module, "nothing"));
  OK(cuLibraryLoadData(&t.library, kText, nullptr, nullptr, 0, nullptr, nullptr, 0));
  OK(cuLibraryGetKernel(&t.kernel, t.library, "nothing"));
  OK(cuStreamCreate(&t.stream, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&t.event, CU_EVENT_DEFAULT));
  OK(cuEventCreate(&t.other_event, CU_EVENT_DEFAULT));
  OK(cuEventRecord(t.event, t.stream));
  OK(cuEventRecord(t.other_event, t.stream));
  t.properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  t.properties.location = t.here;
  OK(cuMemPoolCreate(&t.pool, &t.properties));
  OK(cuGraphCreate(&t.graph, 0));
  OK(cuGraphAddEmptyNode(&t.node, t.graph, nullptr, 0));
  OK(cuGraphInstantiate(&t.executable, t.graph, 0));
  OK(cuMemAlloc(&t.memory, 64));
  OK(cuMemAddressReserve(&t.reserved, 2 * kGranule, 0, 0, 0));
  t.physical_properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  t.physical_properties.location = t.here;
  OK(cuMemCreate(&t.physical, kGranule, &t.physical_properties, 0));
  OK(cuMemMap(t.reserved, kGranule, 0, t.physical, 0));
  OK(cuMemSetAccess(t.reserved, kGranule, &t.access, 1));
  OK(cuMemHostAlloc(&t.pinned, 64, 0));
  t.shape.Width = t.shape.Height = 16;
  t.shape.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  t.shape.NumChannels = 1;
  OK(cuMipmappedArrayCreate(&t.mipmap, &t.shape, 2));
  OK(cuArray3DCreate(&t.array, &t.shape));
  if (with_context) {
    OK(cuCtxCreate(&t.context, nullptr, 0, 0));
    OK(cuCtxSetCurrent(g_context));
  }
  OK(cuCtxSynchronize());
  return t;
}

struct CallOn {
  const char* name;
  std::function<CUresult(Things&)> make;
  bool other_context = false;
};

std::vector<CallOn> right_calls() {
  static CUdeviceptr address;
  static size_t size, other_size;
  static int number;
  static unsigned word;
  static cuuint64_t wide;
  static float milliseconds;
  static void* place;
  static CUmemGenericAllocationHandle physical;
  return {
      {"cuMemAlloc", [](Things&) { return cuMemAlloc(&address, 64); }},
      {"cuMemAllocPitch", [](Things&) { return cuMemAllocPitch(&address, &size, 64, 4, 4); }},
      {"cuMemAllocHost", [](Things&) { return cuMemAllocHost(&place, 64); }},
      {"cuMemHostAlloc", [](Things&) { return cuMemHostAlloc(&place, 64, 0); }},
      {"cuMemAllocManaged", [](Things&) { return cuMemAllocManaged(&address, 64, CU_MEM_ATTACH_GLOBAL); }},
      {"cuMemFree", [](Things& t) { return cuMemFree(t.memory); }},
      {"cuMemFreeHost", [](Things& t) { return cuMemFreeHost(t.pinned); }},
      {"cuMemHostGetDevicePointer", [](Things& t) { return cuMemHostGetDevicePointer(&address, t.pinned, 0); }},
      {"cuMemHostGetFlags", [](Things& t) { return cuMemHostGetFlags(&word, t.pinned); }},
      {"cuMemGetAddressRange", [](Things& t) { return cuMemGetAddressRange(&address, &size, t.memory); }},
      {"cuPointerGetAttribute",
       [](Things& t) { return cuPointerGetAttribute(&word, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, t.memory); }},
      {"cuPointerSetAttribute",
       [](Things& t) {
         number = 1;
         return cuPointerSetAttribute(&number, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, t.memory);
       }},
      {"cuMemAddressReserve", [](Things&) { return cuMemAddressReserve(&address, kGranule, 0, 0, 0); }},
      {"cuMemAddressFree",
       [](Things& t) {
         static_cast<void>(t);
         return cuMemAddressFree(address, kGranule);
       }},
      {"cuMemCreate", [](Things& t) { return cuMemCreate(&physical, kGranule, &t.physical_properties, 0); }},
      {"cuMemRelease", [](Things& t) { return cuMemRelease(t.physical); }},
      {"cuMemMap", [](Things& t) { return cuMemMap(t.reserved + kGranule, kGranule, 0, t.physical, 0); }},
      {"cuMemSetAccess", [](Things& t) { return cuMemSetAccess(t.reserved, kGranule, &t.access, 1); }},
      {"cuMemUnmap", [](Things& t) { return cuMemUnmap(t.reserved, kGranule); }},
      {"cuMemPoolCreate",
       [](Things& t) {
         CUmemoryPool pool;
         return cuMemPoolCreate(&pool, &t.properties);
       }},
      {"cuMemPoolDestroy", [](Things& t) { return cuMemPoolDestroy(t.pool); }},
      {"cuMemPoolTrimTo", [](Things& t) { return cuMemPoolTrimTo(t.pool, 0); }},
      {"cuMemPoolGetAttribute",
       [](Things& t) { return cuMemPoolGetAttribute(t.pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &wide); }},
      {"cuDeviceGetMemPool",
       [](Things&) {
         CUmemoryPool pool;
         return cuDeviceGetMemPool(&pool, 0);
       }},
      {"cuDeviceSetMemPool",
       [](Things&) {
         CUmemoryPool pool;
         const CUresult error = cuDeviceGetDefaultMemPool(&pool, 0);
         return error ? error : cuDeviceSetMemPool(0, pool);
       }},
      {"cuMemAllocFromPoolAsync aside",
       [](Things& t) { return cuMemAllocFromPoolAsync(&address, 64, t.pool, t.stream); }},
      {"cuArrayCreate",
       [](Things& t) {
         CUarray array;
         return cuArray3DCreate(&array, &t.shape);
       }},
      {"cuArrayDestroy", [](Things& t) { return cuArrayDestroy(t.array); }},
      {"cuMipmappedArrayGetLevel",
       [](Things& t) {
         CUarray level;
         return cuMipmappedArrayGetLevel(&level, t.mipmap, 1);
       }},
      {"cuMipmappedArrayDestroy", [](Things& t) { return cuMipmappedArrayDestroy(t.mipmap); }},
      {"cuModuleLoadData",
       [](Things&) {
         CUmodule module;
         return cuModuleLoadData(&module, kText);
       }},
      {"cuModuleGetFunction",
       [](Things& t) {
         CUfunction function;
         return cuModuleGetFunction(&function, t.module, "nothing");
       }},
      {"cuModuleUnload", [](Things& t) { return cuModuleUnload(t.module); }},
      {"cuLibraryLoadData",
       [](Things&) {
         CUlibrary library;
         return cuLibraryLoadData(&library, kText, nullptr, nullptr, 0, nullptr, nullptr, 0);
       }},
      {"cuLibraryGetKernel",
       [](Things& t) {
         CUkernel kernel;
         return cuLibraryGetKernel(&kernel, t.library, "nothing");
       }},
      {"cuKernelGetFunction",
       [](Things& t) {
         CUfunction function;
         return cuKernelGetFunction(&function, t.kernel);
       }},
      {"cuLibraryUnload", [](Things& t) { return cuLibraryUnload(t.library); }},
      {"cuFuncGetAttribute",
       [](Things& t) { return cuFuncGetAttribute(&number, CU_FUNC_ATTRIBUTE_NUM_REGS, t.function); }},
      {"cuFuncSetAttribute",
       [](Things& t) { return cuFuncSetAttribute(t.function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024); }},
      {"cuFuncSetCacheConfig", [](Things& t) { return cuFuncSetCacheConfig(t.function, CU_FUNC_CACHE_PREFER_L1); }},
      {"cuOccupancyMaxActiveBlocksPerMultiprocessor",
       [](Things& t) { return cuOccupancyMaxActiveBlocksPerMultiprocessor(&number, t.function, 64, 0); }},
      {"cuCtxGetLimit", [](Things&) { return cuCtxGetLimit(&size, CU_LIMIT_STACK_SIZE); }},
      {"cuCtxSetLimit",
       [](Things&) {
         const CUresult error = cuCtxGetLimit(&size, CU_LIMIT_STACK_SIZE);
         return error ? error : cuCtxSetLimit(CU_LIMIT_STACK_SIZE, size);
       }},
      {"cuCtxResetPersistingL2Cache", [](Things&) { return cuCtxResetPersistingL2Cache(); }},
      {"cuCtxCreate",
       [](Things&) {
         CUcontext context;
         const CUresult error = cuCtxCreate(&context, nullptr, 0, 0);
         static_cast<void>(cuCtxSetCurrent(g_context));
         return error;
       }},
      {"cuCtxDestroy of another",
       [](Things& t) {
         const CUresult error = cuCtxDestroy(t.context);
         if (!error) t.context = nullptr;
         return error;
       },
       true},
      {"cuCtxSynchronize of another",
       [](Things& t) {
         CUresult error = cuCtxSetCurrent(t.context);
         if (!error) error = cuCtxSynchronize();
         static_cast<void>(cuCtxSetCurrent(g_context));
         return error;
       },
       true},
      {"cuStreamCreate",
       [](Things&) {
         CUstream stream;
         return cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
       }},
      {"cuStreamDestroy", [](Things& t) { return cuStreamDestroy(t.stream); }},
      {"cuStreamGetFlags", [](Things& t) { return cuStreamGetFlags(t.stream, &word); }},
      {"cuStreamSynchronize", [](Things& t) { return cuStreamSynchronize(t.stream); }},
      {"cuStreamQuery", [](Things& t) { return cuStreamQuery(t.stream); }},
      {"cuEventSynchronize", [](Things& t) { return cuEventSynchronize(t.event); }},
      {"cuEventQuery", [](Things& t) { return cuEventQuery(t.event); }},
      {"cuEventElapsedTime", [](Things& t) { return cuEventElapsedTime(&milliseconds, t.event, t.other_event); }},
      {"cuEventRecord aside", [](Things& t) { return cuEventRecord(t.event, t.stream); }},
      {"cuEventDestroy", [](Things& t) { return cuEventDestroy(t.event); }},
      {"cuLaunchKernel aside",
       [](Things& t) { return cuLaunchKernel(t.function, 1, 1, 1, 1, 1, 1, 0, t.stream, nullptr, nullptr); }},
      {"cuLaunchKernel of a library aside",
       [](Things& t) {
         return cuLaunchKernel(reinterpret_cast<CUfunction>(t.kernel), 1, 1, 1, 1, 1, 1, 0, t.stream, nullptr, nullptr);
       }},
      {"cuLaunchHostFunc aside",
       [](Things& t) {
         return cuLaunchHostFunc(
             t.stream, [](void*) {}, nullptr);
       }},
      {"cuStreamWriteValue32 aside",
       [](Things& t) { return cuStreamWriteValue32(t.stream, t.memory, 1, CU_STREAM_WRITE_VALUE_DEFAULT); }},
      {"cuGraphCreate",
       [](Things&) {
         CUgraph graph;
         return cuGraphCreate(&graph, 0);
       }},
      {"cuGraphAddEmptyNode",
       [](Things& t) {
         CUgraphNode node;
         return cuGraphAddEmptyNode(&node, t.graph, nullptr, 0);
       }},
      {"cuGraphAddMemAllocNode",
       [](Things& t) {
         CUgraphNode node;
         CUDA_MEM_ALLOC_NODE_PARAMS parameters{};
         parameters.poolProps = t.properties;
         parameters.bytesize = 64;
         return cuGraphAddMemAllocNode(&node, t.graph, nullptr, 0, &parameters);
       }},
      {"cuGraphClone",
       [](Things& t) {
         CUgraph graph;
         return cuGraphClone(&graph, t.graph);
       }},
      {"cuGraphInstantiate",
       [](Things& t) {
         CUgraphExec executable;
         return cuGraphInstantiate(&executable, t.graph, 0);
       }},
      {"cuGraphExecUpdate",
       [](Things& t) {
         CUgraphExecUpdateResultInfo info{};
         return cuGraphExecUpdate(t.executable, t.graph, &info);
       }},
      {"cuGraphUpload aside", [](Things& t) { return cuGraphUpload(t.executable, t.stream); }},
      {"cuGraphLaunch aside", [](Things& t) { return cuGraphLaunch(t.executable, t.stream); }},
      {"cuGraphExecDestroy", [](Things& t) { return cuGraphExecDestroy(t.executable); }},
      {"cuGraphDestroy", [](Things& t) { return cuGraphDestroy(t.graph); }},
      {"cuDeviceGraphMemTrim", [](Things&) { return cuDeviceGraphMemTrim(0); }},
      {"cuDeviceGetGraphMemAttribute",
       [](Things&) { return cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &wide); }},
      {"cuIpcGetMemHandle",
       [](Things& t) {
         CUipcMemHandle handle;
         return cuIpcGetMemHandle(&handle, t.memory);
       }},
      {"cuMemExportToShareableHandle",
       [](Things& t) {
         return cuMemExportToShareableHandle(&number, t.physical, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
       }},
      {"cuMemGetAllocationGranularity",
       [](Things& t) {
         return cuMemGetAllocationGranularity(&other_size, &t.physical_properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
       }},
      {"cuDevicePrimaryCtxRetain",
       [](Things&) {
         CUcontext context;
         return cuDevicePrimaryCtxRetain(&context, 0);
       }},
  };
}

void right_arguments(unsigned stream_flags) {
  set_up();
  CUstream stream;
  OK(cuStreamCreate(&stream, stream_flags));
  for (const CallOn& call : right_calls()) {
    Things things = make_things(call.other_context);
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    const CUresult result = call.make(things);
    const std::string after = status_text(stream);
    CUgraph graph = nullptr;
    const CUresult end = cuStreamEndCapture(stream, &graph);
    std::printf("%s: %s, then %s, ends %s\n", call.name, error_name(result), after.c_str(), error_name(end));
    if (graph) OK(cuGraphDestroy(graph));
    static_cast<void>(cuCtxSynchronize());
    if (things.context) static_cast<void>(cuCtxDestroy(things.context));
  }
}

// --- how captures end

struct Ending {
  const char* name;
  bool into_own = false;   // cuStreamBeginCaptureToGraph
  bool joined = false;     // another stream takes part
  bool works = false;      // and has work of its own
  bool invalid = false;    // made invalid before
  bool elsewhere = false;  // ended in another thread
  bool in_joined = false;  // ended in the stream that joined
  bool no_result = false;  // NULL for the graph
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
};

void notify_ending(const Ending& how) {
  CUstream origin, other;
  CUevent fork;
  CUgraph own = nullptr;
  OK(cuStreamCreate(&origin, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
  if (how.into_own) {
    OK(cuGraphCreate(&own, 0));
    OK(cuStreamBeginCaptureToGraph(origin, own, nullptr, nullptr, 0, how.mode));
  } else {
    OK(cuStreamBeginCapture(origin, how.mode));
  }
  OK(cuMemsetD8Async(g_memory, 0, 64, origin));
  if (how.joined) {
    OK(cuEventRecord(fork, origin));
    OK(cuStreamWaitEvent(other, fork, 0));
    if (how.works) OK(cuMemsetD8Async(g_second, 0, 64, other));
  }
  if (how.invalid) static_cast<void>(cuStreamSynchronize(origin));
  CUgraph out = reinterpret_cast<CUgraph>(uintptr_t{16});
  CUresult result = CUDA_SUCCESS;
  auto end = [&] { result = cuStreamEndCapture(how.in_joined ? other : origin, how.no_result ? nullptr : &out); };
  if (how.elsewhere) {
    std::thread([&] {
      OK(cuCtxSetCurrent(g_context));
      end();
    }).join();
  } else {
    end();
  }
  const char* given = how.no_result                                     ? "not asked for"
                      : out == reinterpret_cast<CUgraph>(uintptr_t{16}) ? "untouched"
                      : out == nullptr                                  ? "NULL"
                      : out == own                                      ? "the program's own"
                                                                        : "a graph";
  std::printf("%s: %s, the graph is %s, the origin %s, the other stream %s\n", how.name, error_name(result), given,
              status_text(origin), status_text(other));
  CUgraph again = nullptr;
  const CUresult second = cuStreamEndCapture(origin, &again);
  std::printf("  ended again: %s, %s\n", error_name(second), again ? "with a graph" : "with no graph");
  std::printf("  work in the other stream: %s\n", error_name(cuMemsetD8Async(g_second, 0, 64, other)));
  std::printf("  work in the origin: %s\n", error_name(cuMemsetD8Async(g_second, 0, 64, origin)));
  std::printf("  waiting for both: %s\n", error_name(cuCtxSynchronize()));
  if (how.joined) {
    std::printf("  asking the event: %s\n", error_name(cuEventQuery(fork)));
    std::printf("  a wait for the event: %s\n", error_name(cuStreamWaitEvent(other, fork, 0)));
  }
  CUgraph next = nullptr;
  const CUresult begun = cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_RELAXED);
  const CUresult ended = begun ? begun : cuStreamEndCapture(other, &next);
  std::printf("  the other stream's next capture: %s, %s\n", error_name(begun), error_name(ended));
  if (how.joined && !begun && !ended) {
    OK(cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_RELAXED));
    std::printf("  that waits for the event: %s\n", error_name(cuStreamWaitEvent(other, fork, 0)));
    static_cast<void>(cuStreamEndCapture(other, &next));
  }
}

// The program's own graph after a failed capture into it: one driver gives an answer where another crashes.
void tell_own_graph(const Ending& how) {
  set_up();
  CUgraph own = nullptr, out = nullptr;
  CUstream origin, other;
  CUevent fork;
  OK(cuStreamCreate(&origin, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
  OK(cuGraphCreate(&own, 0));
  OK(cuStreamBeginCaptureToGraph(origin, own, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuMemsetD8Async(g_memory, 0, 64, origin));
  if (how.joined) {
    OK(cuEventRecord(fork, origin));
    OK(cuStreamWaitEvent(other, fork, 0));
    OK(cuMemsetD8Async(g_second, 0, 64, other));
  }
  if (how.invalid) static_cast<void>(cuStreamSynchronize(origin));
  CUresult result = CUDA_SUCCESS;
  if (how.elsewhere) {
    std::thread([&] {
      OK(cuCtxSetCurrent(g_context));
      result = cuStreamEndCapture(origin, &out);
    }).join();
  } else {
    result = cuStreamEndCapture(origin, &out);
  }
  std::printf("%s: %s\n", how.name, error_name(result));
  size_t count = 0;
  const CUresult asked = cuGraphGetNodes(own, nullptr, &count);
  std::printf("  its nodes: %s, %zu\n", error_name(asked), count);
  CUgraphExec executable = nullptr;
  std::printf("  instantiating it: %s\n", error_name(cuGraphInstantiate(&executable, own, 0)));
  std::printf("  destroying it: %s\n", error_name(cuGraphDestroy(own)));
}

}  // namespace

int main() {
  std::vector<Section> sections = {
      {"calls beside a capture in a non-blocking stream", [] { beside_captures(CU_STREAM_NON_BLOCKING, true); }},
      {"calls beside an invalid capture in a non-blocking stream",
       [] { beside_captures(CU_STREAM_NON_BLOCKING, false); }},
      {"calls beside a capture in a blocking stream", [] { beside_captures(CU_STREAM_DEFAULT, true); }},
      {"calls beside an invalid capture in a blocking stream", [] { beside_captures(CU_STREAM_DEFAULT, false); }},
      {"wrong arguments beside a capture in a non-blocking stream", [] { wrong_arguments(CU_STREAM_NON_BLOCKING); }},
      {"wrong arguments beside a capture in a blocking stream", [] { wrong_arguments(CU_STREAM_DEFAULT); }},
      {"calls that make, change and end things beside a capture in a non-blocking stream",
       [] { right_arguments(CU_STREAM_NON_BLOCKING); }},
      {"calls that make, change and end things beside a capture in a blocking stream",
       [] { right_arguments(CU_STREAM_DEFAULT); }},
      {"how captures end",
       [] {
         set_up();
         for (const Ending& how : std::vector<Ending>{
                  {.name = "plain"},
                  {.name = "into the program's graph", .into_own = true},
                  {.name = "into the program's graph, no result", .into_own = true, .no_result = true},
                  {.name = "joined without work", .joined = true},
                  {.name = "joined with work", .joined = true, .works = true},
                  {.name = "joined with work, into the program's graph",
                  .into_own = true,
                  .joined = true,
                  .works = true},
                  {.name = "joined with work, no result", .joined = true, .works = true, .no_result = true},
                  {.name = "invalid", .invalid = true},
                  {.name = "invalid, no result", .invalid = true, .no_result = true},
                  {.name = "invalid, joined with work", .joined = true, .works = true, .invalid = true},
                  {.name = "in another thread", .elsewhere = true},
                  {.name = "in another thread, no result", .elsewhere = true, .no_result = true},
                  {.name = "in another thread, thread-local",
                  .elsewhere = true,
                  .mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL},
                  {.name = "in another thread, relaxed", .elsewhere = true, .mode = CU_STREAM_CAPTURE_MODE_RELAXED},
                  {.name = "in another thread, invalid", .invalid = true, .elsewhere = true},
                  {.name = "in another thread, joined with work", .joined = true, .works = true, .elsewhere = true},
                  {.name = "in another thread, into the program's graph", .into_own = true, .elsewhere = true},
                  {.name = "in the joined stream", .joined = true, .works = true, .in_joined = true},
                  {.name = "in the joined stream, no result",
                  .joined = true,
                  .works = true,
                  .in_joined = true,
                  .no_result = true},
                  {.name = "in the joined stream, invalid",
                  .joined = true,
                  .works = true,
                  .invalid = true,
                  .in_joined = true},
                  {.name = "in the joined stream, in another thread",
                  .joined = true,
                  .works = true,
                  .elsewhere = true,
                  .in_joined = true},
                  {.name = "in a stream that takes no part", .in_joined = true},
              }) {
           notify_ending(how);
         }
       }},
      {"the program's graph after a capture that was unjoined",
       [] { tell_own_graph({.name = "unjoined", .joined = true}); }},
      {"the program's graph after a capture that was invalid",
       [] { tell_own_graph({.name = "invalid", .invalid = true}); }},
      {"the program's graph after a capture that ended in another thread",
       [] { tell_own_graph({.name = "in another thread", .elsewhere = true}); }},
  };
  return tell_facts(sections);
}
