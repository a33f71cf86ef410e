// Queries and settings of functions and kernels. The client answers queries from the facts that arrived when the
// function was looked up. Settings are posted, so the client checks their arguments.
#include <algorithm>

#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client_stub/driver/state/module/module_state.hpp"
#include "client_stub/driver/process/process.hpp"

namespace gpuwire::client::hand {
namespace {

// Checks whether an attribute can be set to the value (section "Execution Control" of the driver API,
// cuFuncSetAttribute).
CUresult check_setting(const Caller& caller, FunctionState& function, CUfunction_attribute attribute, int value,
                       int device) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: {
      if (value < 0) return CUDA_ERROR_INVALID_VALUE;
      const auto& facts = process()->devices[size_t(device)].facts->attributes;
      int fixed = 0;
      if (facts.size() <= CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) return CUDA_SUCCESS;
      if (function_attribute(caller, function, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, device, fixed)) return CUDA_SUCCESS;
      return int64_t(value) + fixed > facts[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN]
                 ? CUDA_ERROR_INVALID_VALUE
                 : CUDA_SUCCESS;
    }
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      return value < -1 || value > 100 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH: return value < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      return value < 0 || value > 1 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      return value < 0 || value > CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;  // all others can only be read
  }
}

// Visits the functions that were made of the kernel, one for each context. Lock: the kernel's mutex is held meanwhile.
template <class Visit>
void for_each_made(FunctionState& kernel, Visit&& visit) {
  std::lock_guard lock(kernel.mutex);
  for (auto& [context, made] : kernel.functions) visit(*made);
}

// Notes a changed setting on which the occupancy of the function may depend. To the driver a kernel and the functions
// made of it are one, and a kernel may stand for the function of the current context. After a setting on one of them,
// the others may or may not follow, so their settings are uncertain.
void note_for_occupancy(FunctionState& function, unsigned attribute, int value, int device, bool by_own_call) {
  OccupancySettings::Setting setting{attribute, device, by_own_call && !function.kernel, value};
  FunctionState* kernel = function.kernel ? function.kernel : &function;
  function.occupancy.set(setting);
  setting.own = false;
  if (ModuleState* library = function.kernels_library()) {
    std::lock_guard lock(library->mutex);
    auto named = library->functions.find(function.name);
    if (named == library->functions.end()) return;
    kernel = named->second.get();
  }
  if (kernel != &function) kernel->occupancy.set(setting);
  for_each_made(*kernel, [&](FunctionState& made) {
    if (&made != &function) made.occupancy.set(setting);
  });
}

void forget_attribute(FunctionState& function, CUfunction_attribute attribute, size_t device) {
  if (device < function.on_device.size()) function.on_device[device].forget(attribute);
}

// Notes the new value of an attribute. `call_for` is the kind of object that the call is about; the call for functions
// accepts a kernel, too.
void note_setting(FunctionState& function, CUfunction_attribute attribute, int value, int device,
                  wire::HandleKind call_for) {
  const auto on = size_t(device);
  if (ModuleState* library = function.kernels_library()) {
    std::lock_guard lock(library->mutex);
    if (auto named = library->functions.find(function.name); named != library->functions.end()) {
      for_each_made(*named->second, [&](FunctionState& made) { forget_attribute(made, attribute, on); });
    }
  } else if (on < function.on_device.size()) {
    function.on_device[on].set(attribute, value, CUDA_SUCCESS);
  }
  // A function that was made of the kernel follows it or not, depending on its own settings, so its attribute is
  // requested again.
  for_each_made(function, [&](FunctionState& made) { forget_attribute(made, attribute, on); });
  note_for_occupancy(function, attribute, value, device, function.kind == call_for);
}

// Returns whether the attribute is known to have this value. Programs set the same value before each launch.
bool has_setting(const FunctionState& function, CUfunction_attribute attribute, int value, int device) {
  int known = 0;
  CUresult result;
  return !function.kernels_library() && size_t(device) < function.on_device.size() &&
         function.on_device[size_t(device)].get(attribute, known, result) && result == CUDA_SUCCESS && known == value;
}

// Stores the offset and the size of a parameter. Precondition: `offset` is not null.
CUresult parameter_info(const FunctionState& function, size_t index, size_t* offset, size_t* size) {
  const fatbin::ParameterLayout& parameters = function.parameters;
  if (index >= parameters.offsets.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = parameters.offsets[index];
  if (size) *size = parameters.sizes[index];
  return CUDA_SUCCESS;
}

}  // namespace

// --- functions -----------------------------------------------------------------------------------------------------

CUresult cuFuncGetAttribute(const Caller& caller, int* pi, CUfunction_attribute attrib, CUfunction hfunc) {
  FunctionState* function = find_launchable(hfunc);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  int device = function->context ? function->context->device : caller.state->device;
  int value = 0;
  CUresult result = function_attribute(caller, *function, attrib, device, value);
  if (!result) *pi = value;
  return result;
}

CUresult cuFuncSetAttribute(const Caller& caller, CUfunction hfunc, CUfunction_attribute attrib, int value) {
  FunctionState* function = find_launchable(hfunc);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  int device = function->context ? function->context->device : caller.state->device;
  if (CUresult error = check_setting(caller, *function, attrib, value, device)) return error;
  const bool changes = !has_setting(*function, attrib, value, device);
  CUresult result = forward::cuFuncSetAttribute(caller, hfunc, attrib, value);
  if (!result && changes) note_setting(*function, attrib, value, device, wire::HandleKind::function);
  return result;
}

CUresult cuFuncSetCacheConfig(const Caller& caller, CUfunction hfunc, CUfunc_cache config) {
  FunctionState* function = find_launchable(hfunc);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (config < CU_FUNC_CACHE_PREFER_NONE || config > CU_FUNC_CACHE_PREFER_EQUAL) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = forward::cuFuncSetCacheConfig(caller, hfunc, config);
  if (!result) {
    const int device = function->context ? function->context->device : caller.state->device;
    note_for_occupancy(*function, OccupancySettings::kCacheConfig, config, device, false);
  }
  return result;
}

CUresult cuFuncSetSharedMemConfig(const Caller& caller, CUfunction hfunc, CUsharedconfig config) {
  if (config < CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE || config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE)
    return CUDA_ERROR_INVALID_VALUE;
  return forward::cuFuncSetSharedMemConfig(caller, hfunc, config);
}

CUresult cuFuncGetModule(const Caller& caller, CUmodule* hmod, CUfunction hfunc) {
  FunctionState* function = find_launchable(hfunc);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (function->module->kind == wire::HandleKind::library) {
    return leave(caller, cuLibraryGetModule(caller, hmod, reinterpret_cast<CUlibrary>(function->module->handle)));
  }
  *hmod = reinterpret_cast<CUmodule>(function->module->handle);
  return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const Caller&, const char** name, CUfunction hfunc) {
  FunctionState* function = find_launchable(hfunc);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  *name = function->name.c_str();
  return CUDA_SUCCESS;
}

// The call refuses a kernel: the driver returns CUDA_ERROR_INVALID_HANDLE (as measured on driver 580).
CUresult cuFuncGetParamInfo(const Caller& caller, CUfunction func, size_t paramIndex, size_t* paramOffset,
                            size_t* paramSize) {
  FunctionState* function = find_launchable(func);
  if (!function || function->kind != wire::HandleKind::function) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult error = know_parameters(caller, *function)) return leave(caller, error);
  return parameter_info(*function, paramIndex, paramOffset, paramSize);
}

CUresult cuFuncIsLoaded(const Caller&, CUfunctionLoadingState* state, CUfunction) {
  // The client looks a function up at the server before it returns its handle.
  *state = CU_FUNCTION_LOADING_STATE_LOADED;
  return CUDA_SUCCESS;
}

// --- kernels -------------------------------------------------------------------------------------------------------

CUresult cuKernelGetAttribute(const Caller& caller, int* pi, CUfunction_attribute attrib, CUkernel kernel,
                              CUdevice dev) {
  FunctionState* state = find_kernel(kernel);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  if (!pi) return CUDA_ERROR_INVALID_VALUE;
  if (!process()->device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  int value = 0;
  CUresult result = function_attribute(caller, *state, attrib, dev, value);
  if (!result) *pi = value;
  return result;
}

CUresult cuKernelSetAttribute(const Caller& caller, CUfunction_attribute attrib, int val, CUkernel kernel,
                              CUdevice dev) {
  FunctionState* state = find_kernel(kernel);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  if (!process()->device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  if (CUresult error = check_setting(caller, *state, attrib, val, dev)) return error;
  const bool changes = !has_setting(*state, attrib, val, dev);
  CUresult result = forward::cuKernelSetAttribute(caller, attrib, val, kernel, dev);
  if (!result && changes) note_setting(*state, attrib, val, dev, wire::HandleKind::kernel);
  return result;
}

CUresult cuKernelSetCacheConfig(const Caller& caller, CUkernel kernel, CUfunc_cache config, CUdevice dev) {
  FunctionState* state = find_kernel(kernel);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  if (!process()->device(dev)) return CUDA_ERROR_INVALID_DEVICE;
  if (config < CU_FUNC_CACHE_PREFER_NONE || config > CU_FUNC_CACHE_PREFER_EQUAL) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = forward::cuKernelSetCacheConfig(caller, kernel, config, dev);
  if (!result) note_for_occupancy(*state, OccupancySettings::kCacheConfig, config, dev, false);
  return result;
}

// Unlike the other queries of kernels, this call needs a current context (as measured on driver 580).
CUresult cuKernelGetParamInfo(const Caller& caller, CUkernel kernel, size_t paramIndex, size_t* paramOffset,
                              size_t* paramSize) {
  FunctionState* state = find_kernel(kernel);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult error = know_parameters(caller, *state)) return leave(caller, error);
  return parameter_info(*state, paramIndex, paramOffset, paramSize);
}

}  // namespace gpuwire::client::hand
