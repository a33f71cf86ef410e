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

// An unknown module is reported before a fault (measured on driver 580).
CUresult check_module(CUmodule handle) {
  return driver().modules.find(handle) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

// The same, behind a check of `out`.
CUresult check_counted_module(CUmodule handle, const void* out) {
  return out == nullptr ? CUDA_ERROR_INVALID_VALUE : check_module(handle);
}

template <typename Body>
CUresult in_module(CUmodule handle, Body&& body) {
  const auto module = driver().modules.find(handle);
  return module == nullptr ? CUDA_ERROR_INVALID_HANDLE : body(*module);
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
  return with_any_context_or_none([&](Context* context) -> CUresult {
    const auto module = driver().modules.find(handle);
    if (module == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (const CUresult fault = context == nullptr ? CUDA_SUCCESS : context->fault(); fault != CUDA_SUCCESS) {
      return fault;
    }
    if (const CUresult refused = permit_unsafe_call(); refused != CUDA_SUCCESS) {
      return refused;
    }
    if (module->library != nullptr) {
      return CUDA_ERROR_NOT_PERMITTED;
    }
    const auto owner = module->context().lock();
    if (context == nullptr || owner.get() != context) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    const CUresult result = context->synchronize();
    module->release_handles();
    const std::lock_guard lock(context->code_mutex);
    context->modules.erase(handle);
    return result;
  });
}

CUresult cuModuleGetFunction(CUfunction* out, CUmodule handle, const char* name) {
  return with_arguments_first_of(
      handle, [&] { return check_module(handle); },
      [&](Context&) {
        return in_module(handle, [&](ModuleInstance& module) -> CUresult {
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
      });
}

CUresult cuModuleGetFunctionCount(unsigned int* count, CUmodule handle) {
  return with_arguments_first_of(
      handle, [&] { return check_counted_module(handle, count); },
      [&](Context&) {
        return in_module(handle, [&](ModuleInstance& module) -> CUresult {
          *count = static_cast<unsigned>(module.program().kernels().size());
          return CUDA_SUCCESS;
        });
      });
}

CUresult cuModuleEnumerateFunctions(CUfunction* out, unsigned int room, CUmodule handle) {
  return with_arguments_first([&] { return check_counted_module(handle, out); },
                              [&](Context&) {
                                return in_module(handle, [&](ModuleInstance& module) -> CUresult {
                                  if (room == 0) {
                                    return CUDA_ERROR_INVALID_VALUE;
                                  }
                                  const size_t count = std::min<size_t>(room, module.program().kernels().size());
                                  for (size_t i = 0; i < count; ++i) {
                                    out[i] = module.function(i)->handle;
                                  }
                                  return CUDA_SUCCESS;
                                });
                              });
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule handle, const char* name) {
  const auto find = [&](ModuleInstance& module, const Context* current) -> CUresult {
    if (name == nullptr || (address == nullptr && bytes == nullptr)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (current == nullptr) {
      return CUDA_ERROR_INVALID_CONTEXT;
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
  };
  const CUresult unknown = with_driver([&] { return check_module(handle); });
  return unknown != CUDA_SUCCESS ? unknown : with_context_or_none([&](Context* current) {
    return in_module(handle, [&](ModuleInstance& module) { return find(module, current); });
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
