// Libraries and their kernels. The client loads a library at the server when the program first uses one of its kernels
// or variables, or at once if the program wants eager loading.
#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client/session_sends.hpp"
#include "client_stub/driver/process/files.hpp"
#include "client_stub/driver/state/module/module_state.hpp"
#include "client_stub/driver/state/handle/handle_table.hpp"
#include "client_stub/driver/process/process.hpp"
#include "protocol/wire/limits.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client::hand {
namespace {

struct LibraryOptions {
  bool preserved = false;
  std::vector<wire::message::JitOption> sent;
};

CUresult parse_library_options(unsigned count, const CUlibraryOption* options, void** values, LibraryOptions& out) {
  if (count > 0 && !options) return CUDA_ERROR_INVALID_VALUE;
  if (count > wire::kListItemsMax) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    // Options that are flags may come without a value.
    auto value = values ? reinterpret_cast<uint64_t>(values[i]) : 0;
    switch (options[i]) {
      case CU_LIBRARY_BINARY_IS_PRESERVED: out.preserved = true; break;
      case CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE: return CUDA_ERROR_NOT_SUPPORTED;
      default: out.sent.emplace_back(options[i], value);
    }
  }
  return CUDA_SUCCESS;
}

CUresult publish(const Caller& caller, CUlibrary* library, std::unique_ptr<ModuleState> state) {
  state->kind = wire::HandleKind::library;
  state->handle = handles().create(state->kind, caller.server);
  if (!state->handle) return CUDA_ERROR_OUT_OF_MEMORY;
  // The compiler writes its log during this call, because the program's buffers are valid only until the call returns.
  const bool asks = state->options.error_log || state->options.info_log || state->options.wall_time;
  if (asks || process()->loads_eagerly) {
    std::lock_guard lock(state->mutex);
    if (CUresult error = ensure_loaded(caller, *state)) {
      handles().forget(state->kind, state->handle);
      return error;
    }
    state->options.error_log = state->options.info_log = nullptr;
    state->options.error_log_filled = state->options.info_log_filled = state->options.wall_time = nullptr;
  }
  *library = reinterpret_cast<CUlibrary>(state->handle);
  handles().attach(state->kind, state->handle, state.get());
  state.release();
  return CUDA_SUCCESS;
}

CUresult set_options(ModuleState& state, unsigned jit_count, const CUjit_option* jit, void** jit_values,
                     LibraryOptions& library) {
  if (CUresult error = LoadOptions::parse(jit_count, jit, jit_values, state.options)) return error;
  state.options.library = std::move(library.sent);
  return CUDA_SUCCESS;
}

// Stores the library's module in the caller's context, as a module of the program.
CUresult module_of(const Caller& caller, ModuleState& library, CUmodule* module) {
  std::lock_guard lock(library.mutex);
  if (auto known = library.modules.find(owner(caller)); known != library.modules.end()) {
    *module = reinterpret_cast<CUmodule>(known->second);
    return CUDA_SUCCESS;
  }
  if (CUresult error = ensure_loaded(caller, library)) return error;
  if (CUresult error =
          forward::cuLibraryGetModule(caller, module, reinterpret_cast<CUlibrary>(library.server_handle())))
    return error;
  auto state = std::make_unique<ModuleState>();
  state->kind = wire::HandleKind::module;
  state->handle = reinterpret_cast<uint64_t>(*module);
  state->context = owner(caller);
  state->library = &library;
  state->parameters = library.parameters;
  state->loaded = CUDA_SUCCESS;
  library.modules.emplace(owner(caller), state->handle);
  handles().attach(state->kind, state->handle, state.get());
  state.release();
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuLibraryLoadData(const Caller& caller, CUlibrary* library, const void* code, CUjit_option* jitOptions,
                           void** jitOptionsValues, unsigned int numJitOptions, CUlibraryOption* libraryOptions,
                           void** libraryOptionValues, unsigned int numLibraryOptions) {
  if (!library || !code) return CUDA_ERROR_INVALID_VALUE;
  if (!looks_like_image(code)) return CUDA_ERROR_INVALID_IMAGE;
  LibraryOptions parsed;
  if (CUresult error = parse_library_options(numLibraryOptions, libraryOptions, libraryOptionValues, parsed))
    return error;
  auto state = std::make_unique<ModuleState>();
  if (CUresult error = set_options(*state, numJitOptions, jitOptions, jitOptionsValues, parsed)) return error;
  if (parsed.preserved) {
    state->code = code;
  } else {
    ImageTarget target = image_target();
    auto image = ProgramImage::select(code, target, true);
    if (!image) return log_unusable(target, image.error());
    state->image = *image;
  }
  return publish(caller, library, std::move(state));
}

CUresult cuLibraryLoadFromFile(const Caller& caller, CUlibrary* library, const char* fileName, CUjit_option* jitOptions,
                               void** jitOptionsValues, unsigned int numJitOptions, CUlibraryOption* libraryOptions,
                               void** libraryOptionValues, unsigned int numLibraryOptions) {
  if (!library || !fileName) return CUDA_ERROR_INVALID_VALUE;
  LibraryOptions parsed;
  if (CUresult error = parse_library_options(numLibraryOptions, libraryOptions, libraryOptionValues, parsed))
    return error;
  std::vector<uint8_t> contents;
  if (CUresult error = read_program_file(fileName, contents)) return error;
  ImageTarget target = image_target();
  auto image = ProgramImage::select_from_file(std::move(contents), target);
  if (!image) return log_unusable(target, image.error());
  auto state = std::make_unique<ModuleState>();
  if (CUresult error = set_options(*state, numJitOptions, jitOptions, jitOptionsValues, parsed)) return error;
  state->image = *image;
  return publish(caller, library, std::move(state));
}

CUresult cuLibraryUnload(const Caller& caller, CUlibrary library) {
  ModuleState* state = find_library(library);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  std::vector<uint64_t> modules;
  bool at_server;
  {
    std::lock_guard lock(state->mutex);
    at_server = state->loaded == CUDA_SUCCESS;
    for (auto& [context, module] : state->modules) modules.push_back(module);
  }
  for (uint64_t module : modules) {
    if (ModuleState* made = find_module(reinterpret_cast<CUmodule>(module))) retire_module(made);
  }
  if (at_server) {
    send::post_module_unload(*caller.session, caller.context, {.handle = state->server_handle()});
  }
  retire_module(state);
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(const Caller& caller, CUkernel* pKernel, CUlibrary library, const char* name) {
  if (!pKernel || !name) return CUDA_ERROR_INVALID_VALUE;
  ModuleState* state = find_library(library);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  FunctionState* kernel = nullptr;
  CUresult result = find_function(caller, *state, name, kernel);
  if (!result) *pKernel = reinterpret_cast<CUkernel>(kernel->handle);
  return result;
}

CUresult cuLibraryGetKernelCount(const Caller& caller, unsigned int* count, CUlibrary lib) {
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  ModuleState* state = find_library(lib);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  std::vector<std::string> names;
  CUresult result = list_names(caller, *state, names);
  if (!result) *count = unsigned(names.size());
  return result;
}

CUresult cuLibraryEnumerateKernels(const Caller& caller, CUkernel* kernels, unsigned int numKernels, CUlibrary lib) {
  if (!kernels || numKernels == 0) return CUDA_ERROR_INVALID_VALUE;
  ModuleState* state = find_library(lib);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  std::vector<std::string> names;
  CUresult result = list_names(caller, *state, names);
  if (names.size() > numKernels) names.resize(numKernels);
  std::vector<FunctionState*> found;
  if (!result) result = find_functions(caller, *state, names, found);
  for (size_t i = 0; i < found.size(); ++i) kernels[i] = reinterpret_cast<CUkernel>(found[i]->handle);
  return result;
}

CUresult cuLibraryGetModule(const Caller& caller, CUmodule* pMod, CUlibrary library) {
  ModuleState* state = find_library(library);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  return module_of(caller, *state, pMod);
}

CUresult cuLibraryGetGlobal(const Caller& caller, CUdeviceptr* dptr, size_t* bytes, CUlibrary library,
                            const char* name) {
  ModuleState* state = find_library(library);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;  // another thread has unloaded it
  Variable variable;
  CUresult result = find_variable(caller, *state, name, false, variable);
  if (!result && dptr) *dptr = variable.address;
  if (!result && bytes) *bytes = variable.bytes;
  return result;
}

CUresult cuLibraryGetManaged(const Caller& caller, CUdeviceptr* dptr, size_t* bytes, CUlibrary library,
                             const char* name) {
  if (!name || (!dptr && !bytes)) return CUDA_ERROR_INVALID_VALUE;
  ModuleState* state = find_library(library);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  Variable variable;
  CUresult result = find_variable(caller, *state, name, true, variable);
  if (!result && dptr) *dptr = variable.address;
  if (!result && bytes) *bytes = variable.bytes;
  return result;
}

// --- kernels -------------------------------------------------------------------------------------------------------

CUresult cuKernelGetFunction(const Caller& caller, CUfunction* pFunc, CUkernel kernel) {
  FunctionState* state = find_kernel(kernel);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult error = know_parameters(caller, *state)) return error;
  ModuleState& library = *state->module;
  std::lock_guard lock(library.mutex);
  {
    std::lock_guard kernel_lock(state->mutex);
    if (auto known = state->functions.find(owner(caller)); known != state->functions.end()) {
      *pFunc = reinterpret_cast<CUfunction>(known->second->handle);
      return CUDA_SUCCESS;
    }
  }
  CUfunction made = nullptr;
  if (CUresult error = forward::cuKernelGetFunction(caller, &made, kernel)) return error;
  auto function = std::make_unique<FunctionState>();
  function->kind = wire::HandleKind::function;
  function->handle = reinterpret_cast<uint64_t>(made);
  function->name = state->name;
  function->module = &library;
  function->kernel = state;
  function->context = owner(caller);
  function->parameters = state->parameters;
  function->parameters_of_server = state->parameters_of_server;
  function->on_device = std::vector<FunctionAttributes>(state->on_device.size());
  // A function begins with its kernel's settings on the device of its context.
  auto device = size_t(caller.state->device);
  if (device < function->on_device.size()) function->on_device[device].copy(state->on_device[device]);
  function->occupancy.begin_with(state->occupancy.settings().inherited());
  handles().attach(function->kind, function->handle, function.get());
  {
    std::lock_guard kernel_lock(state->mutex);
    state->functions.emplace(owner(caller), function.get());
  }
  library.derived.push_back(std::move(function));
  *pFunc = made;
  return CUDA_SUCCESS;
}

CUresult cuKernelGetLibrary(const Caller&, CUlibrary* pLib, CUkernel kernel) {
  if (!pLib) return CUDA_ERROR_INVALID_VALUE;
  FunctionState* state = find_kernel(kernel);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  *pLib = reinterpret_cast<CUlibrary>(state->module->handle);
  return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const Caller&, const char** name, CUkernel hfunc) {
  if (!name || !hfunc) return CUDA_ERROR_INVALID_VALUE;
  FunctionState* state = find_kernel(hfunc);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  *name = state->name.c_str();
  return CUDA_SUCCESS;
}

}  // namespace gpuwire::client::hand
