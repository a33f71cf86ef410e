// Libraries and their kernels: programs that belong to no context and are instantiated where they are used.
#include <algorithm>
#include <string>

#include "server/software_device/driver/call/api.hpp"
#include "server/software_device/driver/module/jit_options.hpp"
#include "server/software_device/driver/module/program_image.hpp"
#include "server/software_device/driver/stream/capture_rules.hpp"

using namespace gpuwire::software_device;

namespace {

template <typename Body>
CUresult with_library(CUlibrary handle, Body&& body) noexcept {
  return with_driver([&]() -> CUresult {
    const auto library = driver().libraries.find(handle);
    return library == nullptr ? CUDA_ERROR_INVALID_HANDLE : body(*library);
  });
}

// `check` validates the arguments that are reported before a fault.
template <typename Check, typename Body>
CUresult with_instance(CUlibrary handle, Check&& check, Body&& body) noexcept {
  return with_arguments_first(check, [&](Context& context) {
    return with_library(handle, [&](Library& library) -> CUresult {
      const auto instance = library.instance(context);
      return instance ? body(**instance) : instance.error();
    });
  });
}

CUresult address_of_variable(const Program& program, size_t variable, uint64_t address, CUdeviceptr* out,
                             size_t* bytes) {
  if (address == 0) {
    return CUDA_ERROR_NOT_FOUND;
  }
  if (out != nullptr) {
    *out = address;
  }
  if (bytes != nullptr) {
    *bytes = program.variables()[variable].size_bytes;
  }
  return CUDA_SUCCESS;
}

}  // namespace

// Library options say whether the image stays in place, which does not matter because the program is compiled at once.
CUresult cuLibraryLoadData(CUlibrary* out, const void* image, CUjit_option* options, void** values, unsigned int count,
                           CUlibraryOption*, void**, unsigned int) {
  return with_driver([&]() -> CUresult {
    JitOptions parsed;
    if (out == nullptr || image == nullptr || parsed.parse(count, options, values) != CUDA_SUCCESS) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto program = load_image(image);
    if (!program) {
      parsed.write_error_log(program.error().log);
      return program.error().result;
    }
    const CUlibrary handle = driver().libraries.reserve();
    driver().libraries.insert(handle, std::make_shared<Library>(handle, *std::move(program)));
    *out = handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryLoadFromFile(CUlibrary* out, const char* path, CUjit_option* options, void** values,
                               unsigned int count, CUlibraryOption* library_options, void** library_values,
                               unsigned int library_count) {
  return with_driver([&]() -> CUresult {
    if (path == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const auto image = read_image_file(path);
    return image ? cuLibraryLoadData(out, image->data(), options, values, count, library_options, library_values,
                                     library_count)
                 : CUDA_ERROR_FILE_NOT_FOUND;
  });
}

CUresult cuLibraryUnload(CUlibrary handle) {
  return with_driver([&]() -> CUresult {
    if (driver().libraries.find(handle) == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (const CUresult refused = permit_unsafe_call(); refused != CUDA_SUCCESS) {
      return refused;
    }
    const auto library = driver().libraries.take(handle);
    if (library == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;  // another thread has unloaded it meanwhile
    }
    library->unload();
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryGetKernel(CUkernel* out, CUlibrary handle, const char* name) {
  if (out == nullptr || name == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return with_library(handle, [&](Library& library) -> CUresult {
    const auto kernel = library.kernel(name);
    if (kernel == nullptr) {
      return CUDA_ERROR_NOT_FOUND;
    }
    *out = kernel->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryGetKernelCount(unsigned int* count, CUlibrary handle) {
  if (count == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return with_library(handle, [&](Library& library) -> CUresult {
    *count = static_cast<unsigned>(library.kernels().size());
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryEnumerateKernels(CUkernel* out, unsigned int room, CUlibrary handle) {
  if (out == nullptr || room == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return with_library(handle, [&](Library& library) -> CUresult {
    const size_t count = std::min<size_t>(room, library.kernels().size());
    for (size_t i = 0; i < count; ++i) {
      out[i] = library.kernels()[i]->handle;
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryGetModule(CUmodule* out, CUlibrary handle) {
  const auto wrong = [&] {
    return out == nullptr                               ? CUDA_ERROR_INVALID_VALUE
           : driver().libraries.find(handle) == nullptr ? CUDA_ERROR_INVALID_HANDLE
                                                        : CUDA_SUCCESS;
  };
  return with_instance(handle, wrong, [&](ModuleInstance& instance) -> CUresult {
    *out = instance.handle();
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary handle, const char* name) {
  const auto wrong = [&] {
    return name == nullptr || (address == nullptr && bytes == nullptr) ? CUDA_ERROR_INVALID_VALUE
           : driver().libraries.find(handle) == nullptr                ? CUDA_ERROR_INVALID_HANDLE
                                                                       : CUDA_SUCCESS;
  };
  return with_instance(handle, wrong, [&](ModuleInstance& instance) -> CUresult {
    const size_t variable = find_variable(instance.program(), name);
    return variable == SIZE_MAX ? CUDA_ERROR_NOT_FOUND
                                : address_of_variable(instance.program(), variable,
                                                      instance.variable_addresses()[variable], address, bytes);
  });
}

CUresult cuLibraryGetManaged(CUdeviceptr* address, size_t* bytes, CUlibrary handle, const char* name) {
  if (name == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return with_library(handle, [&](Library& library) -> CUresult {
    const size_t variable = find_variable(library.program(), name);
    if (variable == SIZE_MAX || !library.program().variables()[variable].managed) {
      return CUDA_ERROR_NOT_FOUND;
    }
    // cudart queries this before any context is current. The memory is then charged to the first device.
    const auto slot = current_slot();
    Device& device = slot != nullptr ? *slot->device : *driver().devices.front();
    const auto found = library.managed_address(variable, device);
    return found ? address_of_variable(library.program(), variable, *found, address, bytes) : found.error();
  });
}

CUresult cuLibraryGetUnifiedFunction(void**, CUlibrary handle, const char*) {
  return with_library(handle, [](Library&) { return CUDA_ERROR_NOT_FOUND; });
}
