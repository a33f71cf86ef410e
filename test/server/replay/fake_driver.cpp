#include "test/server/replay/fake_driver.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace gpuwire::test {

namespace {

FakeDriver* g_fake = nullptr;

#define FAKE_BEGIN(name, entry)       \
  FakeDriver& fake = *g_fake;         \
  if (fake.during) fake.during(name); \
  std::lock_guard lock(fake.mutex);   \
  if (CUresult failed = fake.note(name, entry)) return failed;

std::string number(const void* pointer) { return std::to_string(reinterpret_cast<uintptr_t>(pointer)); }

CUresult CUDAAPI ctx_set_current(CUcontext context) {
  FAKE_BEGIN("cuCtxSetCurrent", "");
  if (context && !fake.contexts.count(context)) return CUDA_ERROR_INVALID_CONTEXT;
  fake.current = context;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI ctx_get_device(CUdevice* device) {
  *device = 0;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI ctx_synchronize() {
  FAKE_BEGIN("cuCtxSynchronize", "cuCtxSynchronize");
  fake.release();
  return CUDA_SUCCESS;
}
CUresult CUDAAPI ctx_create(CUcontext* context, CUctxCreateParams*, unsigned, CUdevice) {
  FAKE_BEGIN("cuCtxCreate_v4", "cuCtxCreate_v4");
  *context = static_cast<CUcontext>(fake.make());
  fake.contexts.insert(*context);
  fake.current = *context;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI ctx_pop(CUcontext* context) {
  FAKE_BEGIN("cuCtxPopCurrent_v2", "");
  *context = fake.current;
  fake.current = nullptr;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI ctx_destroy(CUcontext context) {
  FAKE_BEGIN("cuCtxDestroy_v2", "cuCtxDestroy_v2");
  return fake.contexts.erase(context) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
CUcontext primary(CUdevice device) { return reinterpret_cast<CUcontext>(uintptr_t(0x100 + device)); }
CUresult CUDAAPI primary_retain(CUcontext* context, CUdevice device) {
  FAKE_BEGIN("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain " + std::to_string(device));
  ++fake.primaries[device];
  *context = primary(device);
  fake.contexts.insert(*context);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI primary_release(CUdevice device) {
  FAKE_BEGIN("cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease_v2 " + std::to_string(device));
  if (--fake.primaries[device] == 0) fake.contexts.erase(primary(device));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI primary_reset(CUdevice device) {
  FAKE_BEGIN("cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxReset_v2 " + std::to_string(device));
  fake.contexts.erase(primary(device));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI event_create(CUevent* event, unsigned) {
  FAKE_BEGIN("cuEventCreate", "");
  *event = static_cast<CUevent>(fake.make());
  fake.events.insert(*event);
  fake.event_done[*event] = true;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI event_destroy(CUevent event) {
  FAKE_BEGIN("cuEventDestroy_v2", "cuEventDestroy_v2 " + number(event));
  return fake.events.erase(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult CUDAAPI event_record(CUevent event, CUstream) {
  FAKE_BEGIN("cuEventRecord", "");
  if (!fake.events.count(event)) return CUDA_ERROR_INVALID_HANDLE;
  fake.event_done[event] = false;
  fake.enqueue([&fake, event] { fake.event_done[event] = true; });
  return CUDA_SUCCESS;
}
CUresult CUDAAPI event_query(CUevent event) {
  FAKE_BEGIN("cuEventQuery", "");
  if (!fake.events.count(event)) return CUDA_ERROR_INVALID_HANDLE;
  return fake.event_done[event] ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult CUDAAPI event_synchronize(CUevent event) {
  FAKE_BEGIN("cuEventSynchronize", "cuEventSynchronize");
  return fake.events.count(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult CUDAAPI stream_is_capturing(CUstream, CUstreamCaptureStatus* status) {
  FAKE_BEGIN("cuStreamIsCapturing", "");
  *status = fake.capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI stream_get_ctx(CUstream stream, CUcontext* context) {
  auto found = g_fake->stream_contexts.find(stream);
  *context = found == g_fake->stream_contexts.end() ? g_fake->current : found->second;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI stream_query(CUstream) {
  FAKE_BEGIN("cuStreamQuery", "");
  return CUDA_SUCCESS;
}
CUresult CUDAAPI stream_synchronize(CUstream stream) {
  FAKE_BEGIN("cuStreamSynchronize", "cuStreamSynchronize " + number(stream));
  fake.release();
  return CUDA_SUCCESS;
}
CUresult CUDAAPI host_register(void* memory, size_t, unsigned) {
  FAKE_BEGIN("cuMemHostRegister_v2", "");
  fake.registered.insert(memory);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI host_device_pointer(CUdeviceptr* address, void* memory, unsigned) {
  FAKE_BEGIN("cuMemHostGetDevicePointer_v2", "");
  *address = reinterpret_cast<CUdeviceptr>(memory);
  return fake.registered.contains(memory) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI host_unregister(void* memory) {
  FAKE_BEGIN("cuMemHostUnregister", "");
  return fake.registered.erase(memory) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI mem_alloc(CUdeviceptr* address, size_t bytes) {
  FAKE_BEGIN("cuMemAlloc_v2", "cuMemAlloc_v2 " + std::to_string(bytes));
  *address = reinterpret_cast<CUdeviceptr>(fake.make());
  return CUDA_SUCCESS;
}
CUresult CUDAAPI mem_get_info(size_t* free_bytes, size_t* total_bytes) {
  FAKE_BEGIN("cuMemGetInfo_v2", "cuMemGetInfo_v2");
  *free_bytes = *total_bytes = fake.free_bytes;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI mem_free(CUdeviceptr address) {
  FAKE_BEGIN("cuMemFree_v2", "cuMemFree_v2 " + std::to_string(address));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI copy_to_device(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  FAKE_BEGIN("cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync_v2 " + std::to_string(bytes) + " stream " + number(stream));
  fake.enqueue([=] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); });
  return CUDA_SUCCESS;
}
CUresult CUDAAPI copy_to_host(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  FAKE_BEGIN("cuMemcpyDtoHAsync_v2", "cuMemcpyDtoHAsync_v2 " + std::to_string(bytes) + " stream " + number(stream));
  fake.enqueue([=] { std::memcpy(to, reinterpret_cast<const void*>(from), bytes); });
  return CUDA_SUCCESS;
}
// Copies between host and device memory with pitches; copies of arrays are only recorded.
CUresult CUDAAPI copy_3d(const CUDA_MEMCPY3D* copy, CUstream) {
  FAKE_BEGIN("cuMemcpy3DAsync_v2", std::string("cuMemcpy3DAsync_v2") +
                                       (copy->srcMemoryType == CU_MEMORYTYPE_ARRAY ? " from array" : "") +
                                       (copy->dstMemoryType == CU_MEMORYTYPE_ARRAY ? " to array" : ""));
  if (copy->srcMemoryType == CU_MEMORYTYPE_ARRAY || copy->dstMemoryType == CU_MEMORYTYPE_ARRAY) return CUDA_SUCCESS;
  fake.enqueue([c = *copy] {
    auto* from = static_cast<const char*>(
        c.srcMemoryType == CU_MEMORYTYPE_HOST ? c.srcHost : reinterpret_cast<const void*>(c.srcDevice));
    auto* to =
        static_cast<char*>(c.dstMemoryType == CU_MEMORYTYPE_HOST ? c.dstHost : reinterpret_cast<void*>(c.dstDevice));
    for (size_t z = 0; z < c.Depth; ++z) {
      for (size_t y = 0; y < c.Height; ++y) {
        std::memcpy(to + c.dstXInBytes + ((z + c.dstZ) * c.dstHeight + y + c.dstY) * c.dstPitch,
                    from + c.srcXInBytes + ((z + c.srcZ) * c.srcHeight + y + c.srcY) * c.srcPitch, c.WidthInBytes);
      }
    }
  });
  return CUDA_SUCCESS;
}
void keep_parameters(FakeDriver& fake, void** extra) {
  fake.parameters.clear();
  if (!extra) return;
  size_t bytes = *static_cast<size_t*>(extra[3]);
  auto* data = static_cast<std::byte*>(extra[1]);
  fake.parameters.assign(data, data + bytes);
}
CUresult CUDAAPI launch_kernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                               unsigned bz, unsigned shared, CUstream stream, void**, void** extra) {
  FAKE_BEGIN("cuLaunchKernel", "cuLaunchKernel " + number(function) + " grid " + std::to_string(gx) + "," +
                                   std::to_string(gy) + "," + std::to_string(gz) + " block " + std::to_string(bx) +
                                   "," + std::to_string(by) + "," + std::to_string(bz) + " shared " +
                                   std::to_string(shared) + " stream " + number(stream));
  keep_parameters(fake, extra);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI launch_kernel_ex(const CUlaunchConfig* config, CUfunction function, void**, void** extra) {
  FAKE_BEGIN("cuLaunchKernelEx", "cuLaunchKernelEx " + number(function));
  fake.config = *config;
  fake.attributes.assign(config->attrs, config->attrs + config->numAttrs);
  keep_parameters(fake, extra);
  return CUDA_SUCCESS;
}
CUresult write_logs(unsigned count, CUjit_option* names, void** values) {
  for (unsigned i = 0; i < count; ++i) {
    if (names[i] == CU_JIT_ERROR_LOG_BUFFER) std::strcpy(static_cast<char*>(values[i]), "the error log");
    if (names[i] == CU_JIT_INFO_LOG_BUFFER) std::strcpy(static_cast<char*>(values[i]), "the info log");
    if (names[i] == CU_JIT_WALL_TIME) {
      float ms = 2.5f;
      std::memcpy(&values[i], &ms, sizeof ms);
    }
  }
  return CUDA_SUCCESS;
}
CUresult CUDAAPI module_load(CUmodule* module, const void* image, unsigned count, CUjit_option* names, void** values) {
  write_logs(count, names, values);
  FAKE_BEGIN("cuModuleLoadDataEx", "cuModuleLoadDataEx " + std::string(static_cast<const char*>(image)).substr(0, 16));
  *module = static_cast<CUmodule>(fake.make());
  fake.modules.insert(*module);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI module_unload(CUmodule module) {
  FAKE_BEGIN("cuModuleUnload", "cuModuleUnload");
  return fake.modules.erase(module) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult CUDAAPI library_load(CUlibrary* library, const void* image, CUjit_option* names, void** values, unsigned count,
                              CUlibraryOption*, void**, unsigned) {
  write_logs(count, names, values);
  FAKE_BEGIN("cuLibraryLoadData", "cuLibraryLoadData " + std::string(static_cast<const char*>(image)).substr(0, 16));
  *library = static_cast<CUlibrary>(fake.make());
  fake.libraries.insert(*library);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI library_unload(CUlibrary library) {
  FAKE_BEGIN("cuLibraryUnload", "cuLibraryUnload");
  return fake.libraries.erase(library) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult CUDAAPI library_get_module(CUmodule* module, CUlibrary library) {
  FAKE_BEGIN("cuLibraryGetModule", "cuLibraryGetModule");
  *module = static_cast<CUmodule>(fake.make());
  return fake.libraries.contains(library) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult CUDAAPI module_get_function(CUfunction* function, CUmodule, const char* name) {
  FAKE_BEGIN("cuModuleGetFunction", std::string("cuModuleGetFunction ") + name);
  *function = static_cast<CUfunction>(fake.make());
  return CUDA_SUCCESS;
}
CUresult CUDAAPI library_get_kernel(CUkernel* kernel, CUlibrary, const char* name) {
  FAKE_BEGIN("cuLibraryGetKernel", std::string("cuLibraryGetKernel ") + name);
  void*& known = fake.kernels[name];
  if (!known) known = fake.make();
  *kernel = static_cast<CUkernel>(known);
  return CUDA_SUCCESS;
}
// Every kernel has two parameters: 8 bytes at 0, 4 bytes at 8.
CUresult parameter(size_t index, size_t* offset, size_t* size) {
  if (index >= 2) return CUDA_ERROR_INVALID_VALUE;
  *offset = index * 8;
  *size = index ? 4 : 8;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI func_param_info(CUfunction, size_t index, size_t* offset, size_t* size) {
  return parameter(index, offset, size);
}
CUresult CUDAAPI kernel_param_info(CUkernel, size_t index, size_t* offset, size_t* size) {
  FAKE_BEGIN("cuKernelGetParamInfo", "");
  return parameter(index, offset, size);
}
CUresult CUDAAPI func_attribute(int* value, CUfunction_attribute attribute, CUfunction) {
  *value = 100 + int(attribute);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI kernel_attribute(int* value, CUfunction_attribute attribute, CUkernel, CUdevice) {
  if (attribute == 15) return CUDA_ERROR_INVALID_VALUE;
  *value = 200 + int(attribute);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI set_func_attribute(CUfunction, CUfunction_attribute attribute, int value) {
  FAKE_BEGIN("cuFuncSetAttribute", "cuFuncSetAttribute " + std::to_string(attribute) + " " + std::to_string(value));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI set_kernel_attribute(CUfunction_attribute attribute, int value, CUkernel, CUdevice) {
  FAKE_BEGIN("cuKernelSetAttribute", "cuKernelSetAttribute " + std::to_string(attribute) + " " + std::to_string(value));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI module_get_global(CUdeviceptr* address, size_t* bytes, CUmodule, const char* name) {
  FAKE_BEGIN("cuModuleGetGlobal_v2", std::string("cuModuleGetGlobal_v2 ") + name);
  *address = 0xabc000;
  *bytes = 12;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI library_get_managed(CUdeviceptr* address, size_t* bytes, CUlibrary, const char* name) {
  FAKE_BEGIN("cuLibraryGetManaged", std::string("cuLibraryGetManaged ") + name);
  *address = 0xdef000;
  *bytes = 24;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI module_function_count(unsigned* count, CUmodule) {
  *count = 2;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI module_enumerate(CUfunction* functions, unsigned count, CUmodule) {
  for (unsigned i = 0; i < count; ++i) functions[i] = reinterpret_cast<CUfunction>(uintptr_t(i + 1));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI func_name(const char** name, CUfunction function) {
  *name = function == reinterpret_cast<CUfunction>(uintptr_t{1}) ? "first" : "second";
  return CUDA_SUCCESS;
}
CUresult CUDAAPI launch_host_func(CUstream, CUhostFn function, void* user) {
  FAKE_BEGIN("cuLaunchHostFunc", "cuLaunchHostFunc");
  fake.host_functions.push_back([=] { function(user); });
  return CUDA_SUCCESS;
}
CUresult CUDAAPI add_callback(CUstream stream, CUstreamCallback function, void* user, unsigned) {
  FAKE_BEGIN("cuStreamAddCallback", "cuStreamAddCallback");
  fake.host_functions.push_back([=] { function(stream, CUDA_ERROR_LAUNCH_FAILED, user); });
  return CUDA_SUCCESS;
}

}  // namespace

FakeDriver::FakeDriver() {
  g_fake = this;
  table.cuCtxSetCurrent = ctx_set_current;
  table.cuCtxGetDevice = ctx_get_device;
  table.cuCtxSynchronize = ctx_synchronize;
  table.cuCtxCreate_v4 = ctx_create;
  table.cuCtxPopCurrent_v2 = ctx_pop;
  table.cuCtxDestroy_v2 = ctx_destroy;
  table.cuDevicePrimaryCtxRetain = primary_retain;
  table.cuDevicePrimaryCtxRelease_v2 = primary_release;
  table.cuDevicePrimaryCtxReset_v2 = primary_reset;
  table.cuEventCreate = event_create;
  table.cuEventDestroy_v2 = event_destroy;
  table.cuEventRecord = event_record;
  table.cuEventQuery = event_query;
  table.cuEventSynchronize = event_synchronize;
  table.cuStreamIsCapturing = stream_is_capturing;
  table.cuStreamGetCtx = stream_get_ctx;
  table.cuStreamQuery = stream_query;
  table.cuStreamSynchronize = stream_synchronize;
  table.cuMemHostRegister_v2 = host_register;
  table.cuMemHostUnregister = host_unregister;
  table.cuMemHostGetDevicePointer_v2 = host_device_pointer;
  table.cuMemAlloc_v2 = mem_alloc;
  table.cuMemGetInfo_v2 = mem_get_info;
  table.cuMemFree_v2 = mem_free;
  table.cuMemcpyHtoDAsync_v2 = copy_to_device;
  table.cuMemcpyDtoHAsync_v2 = copy_to_host;
  table.cuMemcpy3DAsync_v2 = copy_3d;
  table.cuLaunchKernel = launch_kernel;
  table.cuLaunchKernelEx = launch_kernel_ex;
  table.cuModuleLoadDataEx = module_load;
  table.cuModuleUnload = module_unload;
  table.cuLibraryLoadData = library_load;
  table.cuLibraryUnload = library_unload;
  table.cuModuleGetFunction = module_get_function;
  table.cuLibraryGetModule = library_get_module;
  table.cuLibraryGetKernel = library_get_kernel;
  table.cuFuncGetParamInfo = func_param_info;
  table.cuKernelGetParamInfo = kernel_param_info;
  table.cuFuncGetAttribute = func_attribute;
  table.cuKernelGetAttribute = kernel_attribute;
  table.cuFuncSetAttribute = set_func_attribute;
  table.cuKernelSetAttribute = set_kernel_attribute;
  table.cuModuleGetGlobal_v2 = module_get_global;
  table.cuLibraryGetManaged = library_get_managed;
  table.cuModuleGetFunctionCount = module_function_count;
  table.cuModuleEnumerateFunctions = module_enumerate;
  table.cuFuncGetName = func_name;
  table.cuLaunchHostFunc = launch_host_func;
  table.cuStreamAddCallback = add_callback;
}

FakeDriver::~FakeDriver() { g_fake = nullptr; }

CUresult CUDAAPI FakeDriver::write_word(CUstream, CUdeviceptr address, cuuint32_t value, unsigned) {
  FAKE_BEGIN("cuStreamWriteValue32_v2", "");
  fake.enqueue([=] { std::atomic_ref(*reinterpret_cast<uint32_t*>(address)).store(value, std::memory_order_release); });
  return CUDA_SUCCESS;
}

CUresult FakeDriver::note(const char* name, const std::string& entry) {
  if (!entry.empty()) log.push_back(entry);
  auto found = failures.find(name);
  return found == failures.end() ? CUDA_SUCCESS : found->second;
}

void FakeDriver::enqueue(std::function<void()> work) {
  if (hold) held_.push_back(std::move(work));
  else work();
}

void FakeDriver::release(size_t count) {
  std::lock_guard lock(mutex);
  for (; count > 0 && !held_.empty(); --count) {
    auto work = std::move(held_.front());
    held_.pop_front();
    work();
  }
}

size_t FakeDriver::count(const std::string& prefix) const {
  return size_t(std::count_if(log.begin(), log.end(),
                              [&](const std::string& entry) { return entry.compare(0, prefix.size(), prefix) == 0; }));
}

void* FakeDriver::make() { return reinterpret_cast<void*>(next_ += 0x10); }

}  // namespace gpuwire::test
