// Functions and kernels: their attributes and settings.
#include <algorithm>

#include "server/software_device/driver/call/api.hpp"
#include "server/software_device/driver/module/function_lookup.hpp"

using namespace gpuwire::software_device;

namespace {

// Runs `body` on a function. A null handle or a null `out` is CUDA_ERROR_INVALID_VALUE even after a fault (measured on
// driver 580).
template <typename Body>
CUresult with_function(CUfunction handle, const void* out, Body&& body) noexcept {
  return with_arguments_first(
      [&] { return handle == nullptr || out == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; },
      [&](Context&) -> CUresult {
        const auto function = driver().functions.find(handle);
        return function == nullptr ? CUDA_ERROR_INVALID_HANDLE : body(*function);
      });
}

// Runs `body` for a query about loading.
template <typename Body>
CUresult with_loaded_function(CUfunction handle, Body&& body) noexcept {
  const auto unknown = [&] {
    return driver().functions.find(handle) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
  };
  return with_arguments_first(unknown, [&](Context&) -> CUresult { return body(); });
}

// Runs `body` for a setting of a function of the current context, or of a kernel, which cudart passes as well. NULL is
// an invalid handle, which is reported before a fault.
template <typename Body>
CUresult with_launchable(CUfunction handle, Body&& body) noexcept {
  return with_arguments_first([&] { return handle == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS; },
                              [&](Context& context) -> CUresult {
                                const auto function = find_function(context, handle);
                                return function ? body(**function) : function.error();
                              });
}

template <typename Body>
CUresult with_kernel(CUkernel handle, Body&& body) noexcept {
  return with_driver([&]() -> CUresult {
    const auto kernel = driver().kernels.find(handle);
    return kernel == nullptr ? CUDA_ERROR_INVALID_HANDLE : body(*kernel);
  });
}

CUresult get_attribute(int* value, CUfunction_attribute attribute, const Program& program, const KernelInfo& info,
                       const FunctionSettings& settings) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = static_cast<int>(info.max_threads_per_block); break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = static_cast<int>(info.static_shared_bytes); break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: *value = 0; break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = static_cast<int>(info.local_bytes_per_thread); break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = static_cast<int>(std::clamp(info.registers_per_thread, 1u, 255u)); break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: *value = static_cast<int>(program.target_sm()); break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = kComputeMajor * 10 + kComputeMinor; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = static_cast<int>(dynamic_shared_bytes_max(info, settings));
      break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      *value = settings.shared_carveout.load(std::memory_order_relaxed);
      break;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA: *value = 0; break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET: *value = info.required_cluster.x != 0; break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH: *value = static_cast<int>(info.required_cluster.x); break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT: *value = static_cast<int>(info.required_cluster.y); break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH: *value = static_cast<int>(info.required_cluster.z); break;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      *value = settings.non_portable_cluster.load(std::memory_order_relaxed);
      break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      *value = settings.cluster_policy.load(std::memory_order_relaxed);
      break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult set_attribute(CUfunction_attribute attribute, int value, const KernelInfo& info, FunctionSettings& settings) {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      if (value < 0 || static_cast<uint32_t>(value) + info.static_shared_bytes > kSharedBytesPerBlockOptIn) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      settings.dynamic_shared_bytes_max.store(value, std::memory_order_relaxed);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      if (value < -1 || value > 100) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      settings.shared_carveout.store(value, std::memory_order_relaxed);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
      settings.non_portable_cluster.store(value != 0, std::memory_order_relaxed);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      if (value < CU_CLUSTER_SCHEDULING_POLICY_DEFAULT || value > CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      settings.cluster_policy.store(value, std::memory_order_relaxed);
      return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult set_cache_config(CUfunc_cache config, FunctionSettings& settings) {
  if (config < CU_FUNC_CACHE_PREFER_NONE || config > CU_FUNC_CACHE_PREFER_EQUAL) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  settings.cache_config.store(config, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

// Precondition: `offset` is not null.
CUresult parameter_info(const KernelInfo& info, size_t index, size_t* offset, size_t* bytes) {
  if (index >= info.parameters.size()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *offset = info.parameters[index].offset_bytes;
  if (bytes != nullptr) {
    *bytes = info.parameters[index].size_bytes;
  }
  return CUDA_SUCCESS;
}

// Returns a kernel's settings on a device, or null if there is no such device.
FunctionSettings* settings_on(const Kernel& kernel, CUdevice device) {
  return driver().device(device) == nullptr ? nullptr : kernel.settings[static_cast<size_t>(device)].get();
}

}  // namespace

// --- functions

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction handle) {
  return with_arguments_first_of(
      handle,
      [&] {
        return value == nullptr    ? CUDA_ERROR_INVALID_VALUE
               : handle == nullptr ? CUDA_ERROR_INVALID_HANDLE
                                   : CUDA_SUCCESS;
      },
      [&](Context& context) -> CUresult {
        const auto function = find_function(context, handle);
        return function
                   ? get_attribute(value, attribute, *(*function)->program, (*function)->info(), *(*function)->settings)
                   : function.error();
      });
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
  return with_launchable(
      handle, [&](Function& function) { return set_attribute(attribute, value, function.info(), *function.settings); });
}

CUresult cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache config) {
  return with_launchable(handle, [&](Function& function) { return set_cache_config(config, *function.settings); });
}

CUresult cuFuncSetSharedMemConfig(CUfunction handle, CUsharedconfig) {
  return with_launchable(handle, [](Function&) { return CUDA_SUCCESS; });
}

CUresult cuFuncGetName(const char** name, CUfunction handle) {
  return with_arguments_first([&] { return name && handle ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; },
                              [&](Context&) -> CUresult {
                                const auto function = driver().functions.find(handle);
                                if (function == nullptr) {
                                  return CUDA_ERROR_INVALID_HANDLE;
                                }
                                *name = function->info().name.c_str();
                                return CUDA_SUCCESS;
                              });
}

CUresult cuFuncGetModule(CUmodule* out, CUfunction handle) {
  return with_arguments_first_of(
      handle, [&] { return handle == nullptr || out == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; },
      [&](Context&) -> CUresult {
        const auto function = driver().functions.find(handle);
        const auto module = function == nullptr ? nullptr : function->module.lock();
        if (module == nullptr) {
          return CUDA_ERROR_INVALID_HANDLE;
        }
        *out = module->handle();
        return CUDA_SUCCESS;
      });
}

CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t* offset, size_t* bytes) {
  return with_function(handle, offset,
                       [&](Function& function) { return parameter_info(function.info(), index, offset, bytes); });
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction handle) {
  if (state == nullptr) {
    return with_driver([] { return CUDA_ERROR_INVALID_VALUE; });
  }
  return with_loaded_function(handle, [&]() -> CUresult {
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncLoad(CUfunction handle) {
  return with_loaded_function(handle, [] { return CUDA_SUCCESS; });
}

// --- kernels

CUresult cuKernelGetFunction(CUfunction* out, CUkernel handle) {
  const auto wrong = [&] {
    return out == nullptr                          ? CUDA_ERROR_INVALID_VALUE
           : kind_of(handle) != HandleKind::kernel ? CUDA_ERROR_INVALID_HANDLE
                                                   : CUDA_SUCCESS;
  };
  return with_arguments_first(wrong, [&](Context& context) -> CUresult {
    const auto function = find_function(context, reinterpret_cast<CUfunction>(handle));
    if (!function) {
      return function.error();
    }
    *out = (*function)->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuKernelGetLibrary(CUlibrary* out, CUkernel handle) {
  if (out == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return with_kernel(handle, [&](Kernel& kernel) -> CUresult {
    *out = kernel.library;
    return CUDA_SUCCESS;
  });
}

CUresult cuKernelGetName(const char** name, CUkernel handle) {
  if (handle == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;  // measured on driver 580
  }
  return with_kernel(handle, [&](Kernel& kernel) -> CUresult {
    if (name == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *name = kernel.info().name.c_str();
    return CUDA_SUCCESS;
  });
}

CUresult cuKernelGetParamInfo(CUkernel handle, size_t index, size_t* offset, size_t* bytes) {
  // Unlike other queries about a kernel, NVIDIA's driver requires a current context for this one.
  return with_arguments_first(
      [&] { return handle == nullptr || offset == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; },
      [&](Context&) {
        return with_kernel(handle, [&](Kernel& kernel) { return parameter_info(kernel.info(), index, offset, bytes); });
      });
}

CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel handle, CUdevice device) {
  return with_kernel(handle, [&](Kernel& kernel) -> CUresult {
    const FunctionSettings* const settings = settings_on(kernel, device);
    if (settings == nullptr) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    return value == nullptr ? CUDA_ERROR_INVALID_VALUE
                            : get_attribute(value, attribute, *kernel.program, kernel.info(), *settings);
  });
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel handle, CUdevice device) {
  return with_kernel(handle, [&](Kernel& kernel) -> CUresult {
    FunctionSettings* const settings = settings_on(kernel, device);
    return settings == nullptr ? CUDA_ERROR_INVALID_DEVICE : set_attribute(attribute, value, kernel.info(), *settings);
  });
}

CUresult cuKernelSetCacheConfig(CUkernel handle, CUfunc_cache config, CUdevice device) {
  return with_kernel(handle, [&](Kernel& kernel) -> CUresult {
    FunctionSettings* const settings = settings_on(kernel, device);
    return settings == nullptr ? CUDA_ERROR_INVALID_DEVICE : set_cache_config(config, *settings);
  });
}
