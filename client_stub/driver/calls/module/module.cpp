// Modules. The call that loads a module waits for it, so that the call reports the faults of an image.
#include "client/custom.hpp"
#include "client/session_sends.hpp"
#include "client_stub/driver/state/call/account.hpp"
#include "client_stub/driver/process/files.hpp"
#include "client_stub/driver/process/log_stderr.hpp"
#include "client_stub/driver/state/module/module_state.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/module/prefetched_images.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client::hand {
namespace {

using SelectedImage = tl::expected<std::shared_ptr<const ProgramImage>, ImageError>;

CUresult refuse(const ImageError& error) {
  if (error.result == CUDA_ERROR_NO_BINARY_FOR_GPU) log_stderr(error.message);
  return error.result;
}

void unload(const Caller& caller, uint64_t handle) {
  send::post_module_unload(*caller.session, caller.context, {.handle = handle});
}

CUresult load(const Caller& caller, CUmodule* module, const SelectedImage& image, const LoadOptions& options) {
  if (!image) return refuse(image.error());
  auto state = std::make_unique<ModuleState>();
  state->kind = wire::HandleKind::module;
  state->context = owner(caller);
  const ProgramImage::Digest& digest = (*image)->digest();
  note_image(*state, digest);
  if (options.plain()) state->unwritten = digest;
  if (options.plain() && caller.server->prefetched_images.take(caller, digest, *state)) {
    image_traffic().used.fetch_add(1, std::memory_order_relaxed);
    state->parameters->read(*image, false);
  } else {
    state->handle = handles().create(state->kind, caller.server);
    if (!state->handle) return CUDA_ERROR_OUT_OF_MEMORY;
    auto meanwhile = [&] { state->parameters->read(*image, false); };
    if (CUresult result = load_image(caller, **image, state->handle, options, nullptr, meanwhile)) {
      handles().forget(state->kind, state->handle);
      return result;
    }
  }
  state->loaded = CUDA_SUCCESS;
  *module = reinterpret_cast<CUmodule>(state->handle);
  handles().attach(state->kind, state->handle, state.get());
  state.release();
  return CUDA_SUCCESS;
}

CUresult load_from_memory(const Caller& caller, CUmodule* module, const void* image, unsigned count,
                          CUjit_option* options, void** values) {
  if (!module || !image) return CUDA_ERROR_INVALID_VALUE;
  LoadOptions parsed;
  if (CUresult error = LoadOptions::parse(count, options, values, parsed)) return error;
  return load(caller, module, ProgramImage::select(image, image_target(), false), parsed);
}

}  // namespace

CUresult cuModuleLoad(const Caller& caller, CUmodule* module, const char* fname) {
  if (!module || !fname) return CUDA_ERROR_INVALID_VALUE;
  std::vector<uint8_t> contents;
  if (CUresult error = read_program_file(fname, contents)) return error;
  return load(caller, module, ProgramImage::select_from_file(std::move(contents), image_target()), {});
}

CUresult cuModuleLoadData(const Caller& caller, CUmodule* module, const void* image) {
  return load_from_memory(caller, module, image, 0, nullptr, nullptr);
}

CUresult cuModuleLoadDataEx(const Caller& caller, CUmodule* module, const void* image, unsigned int numOptions,
                            CUjit_option* options, void** optionValues) {
  return load_from_memory(caller, module, image, numOptions, options, optionValues);
}

CUresult cuModuleLoadFatBinary(const Caller& caller, CUmodule* module, const void* fatCubin) {
  return load_from_memory(caller, module, fatCubin, 0, nullptr, nullptr);
}

CUresult cuModuleUnload(const Caller& caller, CUmodule hmod) {
  ModuleState* state = find_module(hmod);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  if (state->library) return CUDA_ERROR_NOT_PERMITTED;  // the library unloads it (as measured on driver 580)
  if (!caller.state) return CUDA_ERROR_INVALID_CONTEXT;
  unload(caller_for(caller, *state), state->handle);
  retire_module(state);
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(const Caller& caller, CUfunction* hfunc, CUmodule hmod, const char* name) {
  ModuleState* state = find_module(hmod);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  if (!hfunc || !name || !*name) return CUDA_ERROR_INVALID_VALUE;
  FunctionState* function = nullptr;
  CUresult result = find_function(caller, *state, name, function);
  if (!result) *hfunc = reinterpret_cast<CUfunction>(function->handle);
  return result;
}

CUresult cuModuleGetFunctionCount(const Caller& caller, unsigned int* count, CUmodule mod) {
  ModuleState* state = find_module(mod);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  std::vector<std::string> names;
  CUresult result = list_names(caller, *state, names);
  if (!result) *count = unsigned(names.size());
  return result;
}

CUresult cuModuleEnumerateFunctions(const Caller& caller, CUfunction* functions, unsigned int numFunctions,
                                    CUmodule mod) {
  ModuleState* state = find_module(mod);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  if (numFunctions == 0) return CUDA_ERROR_INVALID_VALUE;
  std::vector<std::string> names;
  CUresult result = list_names(caller, *state, names);
  if (names.size() > numFunctions) names.resize(numFunctions);
  std::vector<FunctionState*> found;
  if (!result) result = find_functions(caller, *state, names, found);
  for (size_t i = 0; i < found.size(); ++i) functions[i] = reinterpret_cast<CUfunction>(found[i]->handle);
  return result;
}

CUresult cuModuleGetGlobal_v2(const Caller& caller, CUdeviceptr* dptr, size_t* bytes, CUmodule hmod, const char* name) {
  ModuleState* state = find_module(hmod);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  if (!name || (!dptr && !bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (!caller.state) return CUDA_ERROR_INVALID_CONTEXT;
  Variable variable;
  CUresult result = find_variable(caller, *state, name, false, variable);
  if (!result && dptr) *dptr = variable.address;
  if (!result && bytes) *bytes = variable.bytes;
  return result;
}

}  // namespace gpuwire::client::hand
