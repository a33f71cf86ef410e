// The contents of a loaded image: functions, kernels, variables.
#include <memory>
#include <string>
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
#include "server/replay/module/module_work.hpp"
#include "server/replay/session/replay_state.hpp"
#include "server/replay/stream/host_callbacks.hpp"
#include "server/session_handlers.hpp"

namespace gpuwire::server {

namespace {

constexpr size_t kParametersMax = 4096;  // a kernel's parameters have at most 32,764 bytes
constexpr int kFunctionAttributes = 16;  // CU_FUNC_ATTRIBUTE_MAX of CUDA 13.0
// The bytes for names in a module_functions reply; the other bytes of kMessageWordsMax are for the list.
constexpr size_t kNameListBytesMax = wire::kMessageWordsMax * sizeof(capnp::word) - wire::kListItemsMax * 16 - 64;

static_assert(CU_FUNC_ATTRIBUTE_MAX == kFunctionAttributes);

struct Facts {
  CUresult parameters_error = CUDA_SUCCESS;
  ParameterLayout parameters;
  int attributes[kFunctionAttributes] = {};
  int attribute_errors[kFunctionAttributes] = {};
};

// Reads parameters until the driver reports that there is none of that index.
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

// Reads the facts of a kernel. A look-up succeeds even if the parameters are unknown after a fault.
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

void check_name(capnp::Text::Reader name) {
  if (name.size() == 0 || name.size() > wire::kNameBytesMax) throw ProtocolFault{"a name of impossible length"};
}

// The module or library of a look-up.
struct LookupPlace {
  uint64_t handle = 0;
  std::shared_ptr<void*> native;  // its content is null if the load before the look-up has failed

  bool of_library() const { return wire::handle_kind(handle) == wire::HandleKind::library; }
  bool gone() const { return *native == nullptr; }
  CUmodule module() const { return static_cast<CUmodule>(*native); }
  CUlibrary library() const { return static_cast<CUlibrary>(*native); }
};

// Finds the module or library of a handle. Returns false if there is none.
bool find_place(Replay& replay, uint64_t handle, LookupPlace& place) {
  auto kind = wire::handle_kind(handle);
  if (kind != wire::HandleKind::module && kind != wire::HandleKind::library) return false;
  place = {handle, replay.state().modules().loading(handle)};
  if (place.native) return true;
  void* native = nullptr;
  if (!replay.handles().find(kind, handle, native)) return false;
  place.native = std::make_shared<void*>(native);
  return true;
}

// Returns whether a look-up may take long and thus has to run on another thread: behind a load or another look-up, in a
// library that the driver has to compile first, and while streams may wait at functions of the client, for which the
// driver may wait.
bool may_take_long(Replay& replay, const LookupPlace& place) {
  ReplayState& state = replay.state();
  if (state.module_work().busy(place.handle) || state.callbacks().may_stand()) return true;
  const ModuleStore::Loaded* loaded = state.modules().loaded(place.handle);
  return place.of_library() && loaded && !loaded->used;
}

// Runs the look-up on this thread or on another.
void look_up(Replay& replay, const LookupPlace& place, bool elsewhere, ModuleTask task) {
  if (place.of_library()) replay.state().contexts().enter_any();
  auto note = [&replay, handle = place.handle, inner = std::move(task.note)] {
    if (auto* loaded = replay.state().modules().loaded(handle)) loaded->used = true;
    if (inner) inner();
  };
  if (!elsewhere) {
    task.drive();
    note();
    return task.answer();
  }
  replay.state().module_work().run(place.handle,
                                   {.drive =
                                        [inner = std::move(task.drive), context = ContextElsewhere(replay)] {
                                          context.enter();
                                          inner();
                                        },
                                    .note = std::move(note),
                                    .answer = std::move(task.answer)});
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

// One look-up of a function or kernel.
struct FunctionLookup {
  LookupPlace place;
  std::string name;
  uint64_t handle = 0, sequence = 0;
  void* native = nullptr;
  CUresult result = CUDA_SUCCESS;
  Facts facts;

  wire::HandleKind kind() const { return place.of_library() ? wire::HandleKind::kernel : wire::HandleKind::function; }
  void run(const DriverTable& driver) {
    if (place.gone()) {
      result = CUDA_ERROR_INVALID_HANDLE;
    } else if (place.of_library()) {
      CUkernel kernel = nullptr;
      result = drive(driver.cuLibraryGetKernel, &kernel, place.library(), name.c_str());
      if (result == CUDA_SUCCESS) result = kernel_facts(driver, kernel, facts);
      native = kernel;
    } else {
      CUfunction function = nullptr;
      result = drive(driver.cuModuleGetFunction, &function, place.module(), name.c_str());
      if (result == CUDA_SUCCESS) result = function_facts(driver, function, facts);
      native = function;
    }
  }
};

void answer_function(Replay& replay, const FunctionLookup& lookup) {
  capnp::MallocMessageBuilder message;
  auto reply = message.initRoot<schema::FunctionFacts>();
  reply.setResult(lookup.result);
  reply.setDeferred(replay.take_deferred());
  if (lookup.result == CUDA_SUCCESS) {
    const Facts& facts = lookup.facts;
    const auto& [offsets, sizes] = facts.parameters;
    reply.setParametersError(facts.parameters_error);
    reply.setParameterOffsets(kj::arrayPtr(offsets.data(), offsets.size()));
    reply.setParameterSizes(kj::arrayPtr(sizes.data(), sizes.size()));
    reply.setAttributes(kj::arrayPtr(facts.attributes, kFunctionAttributes));
    reply.setAttributeErrors(kj::arrayPtr(facts.attribute_errors, kFunctionAttributes));
  }
  replay.outbox().reply(lookup.sequence, message);
}

// `fresh`: the handle is pending. Otherwise a kernel is looked up again under its handle, for facts that were
// unavailable the first time.
void note_function(Replay& replay, FunctionLookup& lookup, bool fresh) {
  HandleTable& handles = replay.handles();
  void* known = nullptr;
  if (fresh) handles.settle(lookup.kind(), lookup.handle, lookup.result == CUDA_SUCCESS ? lookup.native : nullptr);
  else if (lookup.result == CUDA_SUCCESS &&
           !(lookup.place.of_library() && handles.find(lookup.kind(), lookup.handle, known) && known == lookup.native))
    lookup.result = CUDA_ERROR_INVALID_HANDLE;
  if (lookup.result != CUDA_SUCCESS) return;
  ModuleStore& modules = replay.state().modules();
  if (lookup.facts.parameters_error == CUDA_SUCCESS)
    modules.note_parameters(lookup.native, ParameterLayout(lookup.facts.parameters));
  if (!fresh) return;
  if (Profiler* profiler = replay.profiler()) profiler->name_function(lookup.native, lookup.name);
  if (auto* loaded = modules.loaded(lookup.place.handle)) loaded->parts.push_back(lookup.handle);
  if (lookup.place.of_library()) modules.note_kernel(lookup.handle, lookup.place.handle);
}

}  // namespace

void module_function(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::ModuleFunction>();
  check_name(params.getName());
  auto lookup = std::make_shared<FunctionLookup>();
  lookup->name.assign(params.getName().begin(), params.getName().end());
  lookup->handle = params.getHandle();
  lookup->sequence = call.header.sequence;
  call.answered = true;
  if (!find_place(replay, params.getModule(), lookup->place)) {
    lookup->result = CUDA_ERROR_INVALID_HANDLE;
    return answer_function(replay, *lookup);
  }
  if (wire::handle_kind(lookup->handle) != lookup->kind())
    throw ProtocolFault{"module_function: a handle of the wrong kind"};
  const bool elsewhere = may_take_long(replay, lookup->place);
  const bool fresh = replay.handles().insert_pending(lookup->kind(), lookup->handle);
  if (!fresh) replay.state().module_work().await(lookup->place.handle);
  look_up(replay, lookup->place, elsewhere && fresh,
          {.drive = [lookup, &driver = replay.driver()] { lookup->run(driver); },
           .note = [&replay, lookup, fresh] { note_function(replay, *lookup, fresh); },
           .answer = [&replay, lookup] { answer_function(replay, *lookup); }});
}

namespace {

struct GlobalLookup {
  LookupPlace place;
  std::string name;
  bool managed = false;
  CUdeviceptr address = 0;
  size_t bytes = 0;
  CUresult result = CUDA_SUCCESS;
  ManagedRange range;

  CUresult find(const DriverTable& driver) {
    if (place.gone()) return CUDA_ERROR_INVALID_HANDLE;
    if (place.of_library())
      return drive(managed ? driver.cuLibraryGetManaged : driver.cuLibraryGetGlobal, &address, &bytes, place.library(),
                   name.c_str());
    return managed ? CUDA_ERROR_INVALID_VALUE
                   : drive(driver.cuModuleGetGlobal_v2, &address, &bytes, place.module(), name.c_str());
  }
  void run(const DriverTable& driver) {
    result = find(driver);
    // A program may look up a managed variable as an ordinary one, too.
    if (result != CUDA_SUCCESS || find_managed(driver, address, range) != CUDA_SUCCESS) range = {};
  }
};

void answer_global(Replay& replay, uint64_t sequence, const GlobalLookup& lookup) {
  SmallMessage<> message;
  auto reply = message.root<schema::ModuleGlobalReply>();
  reply.setResult(lookup.result);
  reply.setDeferred(replay.take_deferred());
  reply.setAddress(lookup.address);
  reply.setBytes(lookup.bytes);
  reply.setRangeAddress(lookup.range.begin);
  reply.setRangeBytes(lookup.range.bytes);
  replay.outbox().reply(sequence, *message);
}

CUresult names_in(const DriverTable& driver, const LookupPlace& place, std::vector<std::string>& names) {
  if (place.gone()) return CUDA_ERROR_INVALID_HANDLE;
  if (place.of_library())
    return list_names<CUkernel>(
        [&](unsigned* count) { return drive(driver.cuLibraryGetKernelCount, count, place.library()); },
        [&](CUkernel* out, unsigned count) {
          return drive(driver.cuLibraryEnumerateKernels, out, count, place.library());
        },
        [&](const char** name, CUkernel kernel) { return drive(driver.cuKernelGetName, name, kernel); }, names);
  return list_names<CUfunction>(
      [&](unsigned* count) { return drive(driver.cuModuleGetFunctionCount, count, place.module()); },
      [&](CUfunction* out, unsigned count) {
        return drive(driver.cuModuleEnumerateFunctions, out, count, place.module());
      },
      [&](const char** name, CUfunction function) { return drive(driver.cuFuncGetName, name, function); }, names);
}

void answer_names(Replay& replay, uint64_t sequence, CUresult result, const std::vector<std::string>& names) {
  capnp::MallocMessageBuilder message;
  auto reply = message.initRoot<schema::ModuleFunctions>();
  reply.setResult(result);
  reply.setDeferred(replay.take_deferred());
  auto list = reply.initNames(result == CUDA_SUCCESS ? unsigned(names.size()) : 0);
  for (unsigned i = 0; i < list.size(); ++i) list.set(i, names[i]);
  replay.outbox().reply(sequence, message);
}

}  // namespace

void module_global(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::ModuleGlobal>();
  check_name(params.getName());
  auto lookup = std::make_shared<GlobalLookup>();
  lookup->name.assign(params.getName().begin(), params.getName().end());
  lookup->managed = params.getManaged();
  const uint64_t sequence = call.header.sequence;
  call.answered = true;
  if (!find_place(replay, params.getModule(), lookup->place)) {
    lookup->result = CUDA_ERROR_INVALID_HANDLE;
    return answer_global(replay, sequence, *lookup);
  }
  look_up(replay, lookup->place, may_take_long(replay, lookup->place),
          {.drive = [lookup, &driver = replay.driver()] { lookup->run(driver); },
           .note = {},
           .answer = [&replay, lookup, sequence] { answer_global(replay, sequence, *lookup); }});
}

void module_functions(Replay& replay, Call& call) {
  struct Listing {
    LookupPlace place;
    std::vector<std::string> names;
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
  };
  auto listing = std::make_shared<Listing>();
  const uint64_t sequence = call.header.sequence;
  call.answered = true;
  if (!find_place(replay, call.message.getRoot<schema::ModuleUnload>().getHandle(), listing->place))
    return answer_names(replay, sequence, listing->result, {});
  look_up(
      replay, listing->place, may_take_long(replay, listing->place),
      {.drive = [listing,
                 &driver = replay.driver()] { listing->result = names_in(driver, listing->place, listing->names); },
       .note = {},
       .answer = [&replay, listing, sequence] { answer_names(replay, sequence, listing->result, listing->names); }});
}

}  // namespace gpuwire::server
