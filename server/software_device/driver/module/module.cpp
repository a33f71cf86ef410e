// Modules: a program loaded into the current context.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "server/software_device/driver/call/api.hpp"
#include "server/software_device/driver/module/jit_options.hpp"
#include "server/software_device/driver/module/program_image.hpp"
#include "server/software_device/driver/stream/capture_rules.hpp"

using namespace gpuwire::software_device;

namespace {

CUresult load_module(CUmodule* out, const void* image, JitOptions& options) {
  return with_context([&](Context& context) -> CUresult {
    if (out == nullptr || image == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (driver().loads_wait) {
      static_cast<void>(context.synchronize());
    }
    auto program = load_image(image);
    if (!program) {
      options.write_error_log(program.error().log);
      return program.error().result;
    }
    auto instance = ModuleInstance::create(*std::move(program), context, std::make_shared<ManagedVariables>());
    if (!instance) {
      return instance.error();
    }
    *out = (*instance)->handle();
    const std::lock_guard lock(context.code_mutex);
    context.modules.emplace((*instance)->handle(), *std::move(instance));
    return CUDA_SUCCESS;
  });
}

template <typename Body>
CUresult with_module(CUmodule handle, Body&& body) noexcept {
  const auto wrong = [&] {  // reported before a fault (measured on driver 580)
    return driver().modules.find(handle) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
  };
  return with_arguments_first(wrong, [&](Context&) -> CUresult {
    const auto module = driver().modules.find(handle);
    return module == nullptr ? CUDA_ERROR_INVALID_HANDLE : body(*module);
  });
}

// Runs `body` in the same way, but checks `out` before the module.
template <typename Body>
CUresult with_counted_module(CUmodule handle, const void* out, Body&& body) noexcept {
  const auto wrong = [&] {
    return out == nullptr                             ? CUDA_ERROR_INVALID_VALUE
           : driver().modules.find(handle) == nullptr ? CUDA_ERROR_INVALID_HANDLE
                                                      : CUDA_SUCCESS;
  };
  return with_arguments_first(wrong, [&](Context&) { return with_module(handle, body); });
}

}  // namespace

CUresult cuModuleLoadDataEx(CUmodule* out, const void* image, unsigned int count, CUjit_option* options,
                            void** values) {
  JitOptions parsed;
  const CUresult result = parsed.parse(count, options, values);
  return result == CUDA_SUCCESS ? load_module(out, image, parsed) : result;
}

CUresult cuModuleLoadData(CUmodule* out, const void* image) {
  JitOptions none;
  return load_module(out, image, none);
}

CUresult cuModuleLoadFatBinary(CUmodule* out, const void* image) { return cuModuleLoadData(out, image); }

CUresult cuModuleLoad(CUmodule* out, const char* path) {
  return with_context([&](Context&) -> CUresult {
    if (path == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const auto image = read_image_file(path);
    return image ? cuModuleLoadData(out, image->data()) : CUDA_ERROR_FILE_NOT_FOUND;
  });
}

CUresult cuModuleUnload(CUmodule handle) {
  return with_any_context([&](Context& context) -> CUresult {
    const auto module = driver().modules.find(handle);
    if (module == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (const CUresult fault = context.fault(); fault != CUDA_SUCCESS) {
      return fault;
    }
    if (const CUresult refused = permit_unsafe_call(); refused != CUDA_SUCCESS) {
      return refused;
    }
    if (module->library != nullptr) {
      return CUDA_ERROR_NOT_PERMITTED;
    }
    const auto owner = module->context().lock();
    if (owner.get() != &context) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    const CUresult result = context.synchronize();
    module->release_handles();
    const std::lock_guard lock(context.code_mutex);
    context.modules.erase(handle);
    return result;
  });
}

CUresult cuModuleGetFunction(CUfunction* out, CUmodule handle, const char* name) {
  return with_module(handle, [&](ModuleInstance& module) -> CUresult {
    if (out == nullptr || name == nullptr || *name == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const auto function = module.function(std::string_view(name));
    if (function == nullptr) {
      return CUDA_ERROR_NOT_FOUND;
    }
    *out = function->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleGetFunctionCount(unsigned int* count, CUmodule handle) {
  return with_counted_module(handle, count, [&](ModuleInstance& module) -> CUresult {
    *count = static_cast<unsigned>(module.program().kernels().size());
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleEnumerateFunctions(CUfunction* out, unsigned int room, CUmodule handle) {
  return with_counted_module(handle, out, [&](ModuleInstance& module) -> CUresult {
    if (room == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const size_t count = std::min<size_t>(room, module.program().kernels().size());
    for (size_t i = 0; i < count; ++i) {
      out[i] = module.function(i)->handle;
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule handle, const char* name) {
  return with_module(handle, [&](ModuleInstance& module) -> CUresult {
    if (name == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const size_t variable = find_variable(module.program(), name);
    if (variable == SIZE_MAX || module.variable_addresses()[variable] == 0) {
      return CUDA_ERROR_NOT_FOUND;
    }
    if (address != nullptr) {
      *address = module.variable_addresses()[variable];
    }
    if (bytes != nullptr) {
      *bytes = module.program().variables()[variable].size_bytes;
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  return with_driver([&]() -> CUresult {
    if (mode == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
  });
}
