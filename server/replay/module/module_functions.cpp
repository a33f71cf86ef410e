// What is inside a loaded image: functions, kernels, variables.
#include <utility>
#include <vector>

#include "protocol/cuda_abi/sticky.hpp"
#include "protocol/wire/limits.hpp"
#include "server/driver_table.hpp"
#include "server/replay/call/profiler.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/context/context.hpp"
#include "server/replay/managed_memory/managed_memory.hpp"
#include "server/replay/module/module_store.hpp"
#include "server/replay/session/replay_state.hpp"
#include "server/session_handlers.hpp"

namespace gpuwire::server {

namespace {

constexpr size_t kParametersMax = 4096;  // a kernel has at most 32,764 bytes of them
constexpr int kFunctionAttributes = 16;  // CU_FUNC_ATTRIBUTE_MAX of CUDA 13.0
// What of a module_functions reply may be names; the rest of kMessageWordsMax is their list.
constexpr size_t kNameListBytesMax = wire::kMessageWordsMax * sizeof(capnp::word) - wire::kListItemsMax * 16 - 64;

static_assert(CU_FUNC_ATTRIBUTE_MAX == kFunctionAttributes);

struct Facts {
  CUresult parameters_error = CUDA_SUCCESS;
  ParameterLayout parameters;
  int attributes[kFunctionAttributes] = {};
  int attribute_errors[kFunctionAttributes] = {};
};

// Asks until the driver says that there is no parameter of that index.
template <class Query>
CUresult read_parameters(Query query, Facts& facts) {
  for (size_t index = 0; index < kParametersMax; ++index) {
    size_t offset = 0, size = 0;
    CUresult result = query(index, &offset, &size);
    if (result == CUDA_ERROR_INVALID_VALUE) return CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) return result;
    facts.parameters.offsets.push_back(uint32_t(offset));
    facts.parameters.sizes.push_back(uint32_t(size));
  }
  return CUDA_SUCCESS;
}

CUresult function_facts(const DriverTable& driver, CUfunction function, Facts& facts) {
  CUresult result =
      read_parameters([&](size_t index, size_t* offset,
                          size_t* size) { return drive(driver.cuFuncGetParamInfo, function, index, offset, size); },
                      facts);
  for (int i = 0; i < kFunctionAttributes; ++i) {
    facts.attribute_errors[i] =
        drive(driver.cuFuncGetAttribute, &facts.attributes[i], CUfunction_attribute(i), function);
  }
  return result;
}

// A kernel is found where a fault has left nobody to tell of its parameters.
CUresult kernel_facts(const DriverTable& driver, CUkernel kernel, Facts& facts) {
  CUresult result =
      read_parameters([&](size_t index, size_t* offset,
                          size_t* size) { return drive(driver.cuKernelGetParamInfo, kernel, index, offset, size); },
                      facts);
  if (cuda_abi::is_sticky(result)) facts.parameters_error = std::exchange(result, CUDA_SUCCESS);
  CUdevice device = 0;
  CUresult no_device = drive(driver.cuCtxGetDevice, &device);
  for (int i = 0; i < kFunctionAttributes; ++i) {
    facts.attribute_errors[i] =
        no_device ? no_device
                  : drive(driver.cuKernelGetAttribute, &facts.attributes[i], CUfunction_attribute(i), kernel, device);
  }
  return result;
}

void send_facts(Replay& replay, Call& call, CUresult result, const Facts& facts) {
  capnp::MallocMessageBuilder message;
  auto reply = message.initRoot<schema::FunctionFacts>();
  reply.setResult(result);
  reply.setDeferred(replay.take_deferred());
  if (result == CUDA_SUCCESS) {
    const auto& [offsets, sizes] = facts.parameters;
    reply.setParametersError(facts.parameters_error);
    reply.setParameterOffsets(kj::arrayPtr(offsets.data(), offsets.size()));
    reply.setParameterSizes(kj::arrayPtr(sizes.data(), sizes.size()));
    reply.setAttributes(kj::arrayPtr(facts.attributes, kFunctionAttributes));
    reply.setAttributeErrors(kj::arrayPtr(facts.attribute_errors, kFunctionAttributes));
  }
  call.answered = true;
  replay.outbox().reply(call.header.sequence, message);
}

void check_name(capnp::Text::Reader name) {
  if (name.size() == 0 || name.size() > wire::kNameBytesMax) throw ProtocolFault{"a name of impossible length"};
}

// Of the module, or of the library.
bool find_module(Replay& replay, uint64_t handle, CUmodule& module, CUlibrary& library) {
  void* native = nullptr;
  auto kind = wire::handle_kind(handle);
  if (kind != wire::HandleKind::module && kind != wire::HandleKind::library) return false;
  if (!replay.handles().find(kind, handle, native)) return false;
  if (kind == wire::HandleKind::module) module = static_cast<CUmodule>(native);
  else library = static_cast<CUlibrary>(native);
  return true;
}

// Appends the names of the functions to `names`; CUDA_ERROR_NOT_SUPPORTED when they do not fit into a reply.
template <class Function, class GetCount, class Enumerate, class GetName>
CUresult list_names(GetCount get_count, Enumerate enumerate, GetName get_name, std::vector<std::string>& names) {
  unsigned count = 0;
  if (CUresult error = get_count(&count)) return error;
  if (count > wire::kListItemsMax) return CUDA_ERROR_NOT_SUPPORTED;
  std::vector<Function> functions(count);
  if (count)
    if (CUresult error = enumerate(functions.data(), count)) return error;
  size_t bytes = 0;
  for (Function function : functions) {
    const char* name = nullptr;
    if (CUresult error = get_name(&name, function)) return error;
    names.emplace_back(name ? name : "");
    bytes += names.back().size() + 8;
    if (bytes > kNameListBytesMax) return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

}  // namespace

void module_function(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::ModuleFunction>();
  check_name(params.getName());
  const DriverTable& driver = replay.driver();
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  Facts facts;
  if (!find_module(replay, params.getModule(), module, library))
    return send_facts(replay, call, CUDA_ERROR_INVALID_HANDLE, facts);
  auto kind = module ? wire::HandleKind::function : wire::HandleKind::kernel;
  if (wire::handle_kind(params.getHandle()) != kind) throw ProtocolFault{"module_function: a handle of the wrong kind"};
  CUresult result;
  void* native = nullptr;
  const char* name = params.getName().cStr();
  if (module) {
    CUfunction function = nullptr;
    result = drive(driver.cuModuleGetFunction, &function, module, name);
    if (result == CUDA_SUCCESS) result = function_facts(driver, function, facts);
    native = function;
  } else {
    CUkernel kernel = nullptr;
    replay.state().contexts().enter_any();
    result = drive(driver.cuLibraryGetKernel, &kernel, library, name);
    if (result == CUDA_SUCCESS) result = kernel_facts(driver, kernel, facts);
    native = kernel;
  }
  // A kernel is asked for once more for what could not be told the first time.
  void* known = nullptr;
  const bool again = library && replay.handles().find(kind, params.getHandle(), known) && known == native;
  if (result == CUDA_SUCCESS && !again && !replay.handles().insert(kind, params.getHandle(), native))
    result = CUDA_ERROR_INVALID_HANDLE;
  if (result == CUDA_SUCCESS && facts.parameters_error == CUDA_SUCCESS)
    replay.state().modules().note_parameters(native, facts.parameters);
  if (result == CUDA_SUCCESS && !again) {
    if (Profiler* profiler = replay.profiler())
      profiler->name_function(native, {params.getName().begin(), params.getName().size()});
    ModuleStore& modules = replay.state().modules();
    if (auto* loaded = modules.loaded(params.getModule())) loaded->parts.push_back(params.getHandle());
    if (library) modules.note_kernel(params.getHandle(), params.getModule());
  }
  send_facts(replay, call, result, facts);
}

void module_global(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::ModuleGlobal>();
  check_name(params.getName());
  const DriverTable& driver = replay.driver();
  const char* name = params.getName().cStr();
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  CUdeviceptr address = 0;
  size_t bytes = 0;
  CUresult result;
  if (!find_module(replay, params.getModule(), module, library)) result = CUDA_ERROR_INVALID_HANDLE;
  else if (module)
    result = params.getManaged() ? CUDA_ERROR_INVALID_VALUE
                                 : drive(driver.cuModuleGetGlobal_v2, &address, &bytes, module, name);
  else if (params.getManaged()) {
    replay.state().contexts().enter_any();
    result = drive(driver.cuLibraryGetManaged, &address, &bytes, library, name);
  } else result = drive(driver.cuLibraryGetGlobal, &address, &bytes, library, name);
  SmallMessage<> message;
  auto reply = message.root<schema::ModuleGlobalReply>();
  reply.setResult(result);
  reply.setDeferred(replay.take_deferred());
  reply.setAddress(address);
  reply.setBytes(bytes);
  // A managed variable may be asked for as an ordinary one, too.
  ManagedRange range;
  if (result == CUDA_SUCCESS && find_managed(driver, address, range) == CUDA_SUCCESS) {
    reply.setRangeAddress(range.begin);
    reply.setRangeBytes(range.bytes);
  }
  call.answered = true;
  replay.outbox().reply(call.header.sequence, *message);
}

void module_functions(Replay& replay, Call& call) {
  const DriverTable& driver = replay.driver();
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  std::vector<std::string> names;
  CUresult result = CUDA_ERROR_INVALID_HANDLE;
  if (find_module(replay, call.message.getRoot<schema::ModuleUnload>().getHandle(), module, library)) {
    if (module) {
      result = list_names<CUfunction>(
          [&](unsigned* count) { return drive(driver.cuModuleGetFunctionCount, count, module); },
          [&](CUfunction* out, unsigned count) { return drive(driver.cuModuleEnumerateFunctions, out, count, module); },
          [&](const char** name, CUfunction function) { return drive(driver.cuFuncGetName, name, function); }, names);
    } else {
      result = list_names<CUkernel>(
          [&](unsigned* count) { return drive(driver.cuLibraryGetKernelCount, count, library); },
          [&](CUkernel* out, unsigned count) { return drive(driver.cuLibraryEnumerateKernels, out, count, library); },
          [&](const char** name, CUkernel kernel) { return drive(driver.cuKernelGetName, name, kernel); }, names);
    }
  }
  if (result != CUDA_SUCCESS) names.clear();
  capnp::MallocMessageBuilder message;
  auto reply = message.initRoot<schema::ModuleFunctions>();
  reply.setResult(result);
  reply.setDeferred(replay.take_deferred());
  auto list = reply.initNames(unsigned(names.size()));
  for (unsigned i = 0; i < names.size(); ++i) list.set(i, names[i]);
  call.answered = true;
  replay.outbox().reply(call.header.sequence, message);
}

}  // namespace gpuwire::server
