#include "client_stub/driver/state/module/module_state.hpp"

#include <algorithm>
#include <deque>
#include <utility>

#include <fmt/format.h>

#include "client/forward.hpp"
#include "client/session_sends.hpp"
#include "client_stub/driver/process/log_stderr.hpp"
#include "client_stub/driver/state/launch/occupancy.hpp"
#include "client_stub/driver/state/managed_memory/managed.hpp"
#include "client_stub/driver/state/managed_memory/managed_memory.hpp"
#include "client_stub/driver/state/memory/address_map.hpp"
#include "client_stub/driver/process/process.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/module/prefetched_images.hpp"
#include "client_stub/driver/state/stream/capture.hpp"
#include "protocol/cuda_abi/peer_code.hpp"
#include "protocol/threads/mutex.hpp"
#include "protocol/wire/limits.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {
namespace {

template <class CudaHandle>
uint64_t number(CudaHandle handle) {
  return reinterpret_cast<uint64_t>(handle);
}

// Holds ended modules, oldest first. Never destroyed.
struct Retired {
  Mutex mutex;
  std::deque<std::unique_ptr<ModuleState>> modules GUARDED_BY(mutex);
};
Retired& retired() {
  static auto* queue = new Retired;
  return *queue;
}

// Stores the server's figures, which are validated later.
CUresult store_parameters(schema::FunctionFacts::Reader facts, FunctionState& function) {
  const CUresult error = cuda_abi::from_peer(facts.getParametersError());
  function.parameters_reported = error == CUDA_SUCCESS;
  function.parameters = {};
  if (error) return error;
  auto offsets = facts.getParameterOffsets();
  auto sizes = facts.getParameterSizes();
  for (unsigned i = 0; i < std::min(offsets.size(), sizes.size()); ++i) {
    // More parameters than any kernel has count as not reported.
    if (!function.parameters.add(offsets[i], sizes[i])) {
      function.parameters_reported = false;
      return CUDA_ERROR_INVALID_IMAGE;
    }
  }
  return CUDA_SUCCESS;
}

// CUDA C++ Programming Guide, "__global__ Function Parameters".
uint32_t parameter_bytes_max() {
  constexpr int kVolta = 7;
  constexpr uint32_t kBeforeVolta = 4096;
  for (const Device& device : process()->devices) {
    const auto& attributes = device.facts->attributes;
    const size_t major = CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
    if (attributes.size() > major && attributes[major] < kVolta) return kBeforeVolta;
  }
  return fatbin::kParameterBytesMax;
}

// Precondition: the server's answer is stored, if there is one. Lock: the module's mutex.
CUresult settle_parameters(FunctionState& function) {
  KernelParameters* const image = function.module->parameters.get();
  auto said = image ? image->of(function.name) : std::nullopt;
  if (said) {
    if (function.parameters_reported && function.parameters != *said)
      log_stderr(
          fmt::format("the server claims {} bytes of parameters for a kernel that has {} in its image, which stands",
                      function.parameters.bytes, said->bytes));
    function.parameters = *std::move(said);
  } else if (!function.parameters_reported || function.parameters.bytes > parameter_bytes_max()) {
    return CUDA_ERROR_INVALID_IMAGE;
  }
  function.parameters_of_server = !said;
  function.parameters_known.store(true, std::memory_order_release);
  return CUDA_SUCCESS;
}

void store_facts(schema::FunctionFacts::Reader facts, FunctionState& function, size_t devices, int asked_device) {
  static_cast<void>(store_parameters(facts, function));
  function.parameters_known.store(false, std::memory_order_relaxed);
  function.on_device = std::vector<FunctionAttributes>(devices);
  if (asked_device < 0 || size_t(asked_device) >= devices) return;
  auto values = facts.getAttributes();
  auto errors = facts.getAttributeErrors();
  for (unsigned i = 0; i < std::min({values.size(), errors.size(), kFunctionAttributes}); ++i) {
    function.on_device[asked_device].set(i, values[i], cuda_abi::from_peer(errors[i]));
  }
}

void end_function(FunctionState& function) noexcept { handles().forget(function.kind, function.handle); }

}  // namespace

FunctionQuestions::FunctionQuestions(ModuleState& module) noexcept : module_(module) {}

FunctionQuestions::~FunctionQuestions() {
  for (Question& question : questions_) {
    if (question.function) end_function(*question.function);
  }
}

bool FunctionQuestions::asks(std::string_view name) const noexcept {
  return std::any_of(questions_.begin(), questions_.end(),
                     [&](const Question& question) { return question.function->name == name; });
}

CUresult FunctionQuestions::add(const Caller& caller, std::string_view name) {
  auto function = std::make_unique<FunctionState>();
  function->kind = module_.kind == wire::HandleKind::library ? wire::HandleKind::kernel : wire::HandleKind::function;
  function->name = name;
  function->module = &module_;
  function->context = module_.context;
  Question& question = questions_.emplace_back();
  function->handle = handles().create(function->kind, caller.server);
  if (!function->handle) {
    questions_.pop_back();
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  question.function = std::move(function);
  return CUDA_SUCCESS;
}

void FunctionQuestions::prefetch(const Caller& caller) {
  asks_occupancy_ = true;
  if (!module_.known || std::exchange(module_.images_prefetched, true)) return;
  for (const std::string& name : module_.known->ahead()) {
    if (!asks(name) && !module_.functions.contains(name) && add(caller, name)) return;
  }
}

CUresult FunctionQuestions::begin(const Caller& caller) {
  device_ = module_.context ? module_.context->device : caller.state ? caller.state->device : 0;
  for (Question& question : questions_) {
    CUresult error = send::begin_module_function(
        *caller.session, caller.context,
        {.module = module_.server_handle(), .name = question.function->name, .handle = question.function->handle},
        question.sequence);
    if (error) {
      drop(caller);
      return error;
    }
    question.begun = true;
  }
  under_way_ = true;
  if (asks_occupancy_) begin_occupancy(caller);
  return CUDA_SUCCESS;
}

// Asks only about functions that the program cannot reach in another way, since the server sets their attributes for a
// moment.
void FunctionQuestions::begin_occupancy(const Caller& caller) {
  const bool only_here = !module_.library && module_.modules.empty();
  if (!module_.questions || !only_here || !caller.context || !caller.state || caller.server->captures.any()) return;
  size_t asked = 0;
  for (Question& question : questions_) {
    if (asked >= kProfiledOccupancyQuestionsMax) return;
    OccupancyPrefetch& about = *occupancy_.emplace_back(std::make_unique<OccupancyPrefetch>(*question.function));
    about.begin_all(caller, *module_.questions);
    asked += about.size();
  }
}

size_t FunctionQuestions::size() const noexcept {
  size_t count = questions_.size();
  for (const auto& about : occupancy_) count += about->size();
  return count;
}

CUresult FunctionQuestions::read(const Caller& caller, Question& question) const {
  question.begun = false;
  return send::finish_module_function(*caller.session, question.sequence, [&](schema::FunctionFacts::Reader facts) {
    if (facts.getResult() == CUDA_SUCCESS) store_facts(facts, *question.function, process()->devices.size(), device_);
  });
}

CUresult FunctionQuestions::finish(const Caller& caller) {
  under_way_ = false;
  CUresult first = CUDA_SUCCESS;
  for (size_t i = 0; i < questions_.size(); ++i) {
    Question& question = questions_[i];
    CUresult result = read(caller, question);
    if (i < occupancy_.size() && !occupancy_[i]->finish(caller) && !result) {
      result = CUDA_ERROR_UNKNOWN;
      module_.loaded = result;
      static_cast<void>(question.function.release());  // the server still has the object of its handle
    }
    if (i == 0) first = result;
    if (result) continue;
    FunctionState* found = question.function.get();
    if (!module_.functions.try_emplace(found->name, std::move(question.function)).second) continue;  // requested twice
    handles().attach(found->kind, found->handle, found);
  }
  occupancy_.clear();
  return first;
}

void FunctionQuestions::drop(const Caller& caller) {
  under_way_ = false;
  for (Question& question : questions_) {
    if (question.begun) static_cast<void>(read(caller, question));
  }
  for (const auto& about : occupancy_) about->finish(caller);
  occupancy_.clear();
}

void FunctionQuestions::set_aside(const Caller& caller) const noexcept {
  for (const Question& question : questions_) caller.session->set_aside(question.sequence);
  for (const auto& about : occupancy_) about->set_aside(caller);
}

void note_image(ModuleState& state, const ProgramImage::Digest& image) {
  const auto warm_start = std::make_shared<WarmStart>(warm_start_folder(), image);
  state.parameters = std::make_shared<KernelParameters>(warm_start, image);
  state.known.emplace(warm_start);
  state.questions.emplace(warm_start);
}

ModuleState* find_module(CUmodule module) noexcept {
  return handles().find<ModuleState>(wire::HandleKind::module, number(module));
}
ModuleState* find_library(CUlibrary library) noexcept {
  return handles().find<ModuleState>(wire::HandleKind::library, number(library));
}
FunctionState* find_kernel(CUkernel kernel) noexcept {
  return handles().find<FunctionState>(wire::HandleKind::kernel, number(kernel));
}

Caller caller_for(const Caller& caller, const ModuleState& state) noexcept {
  Caller other = caller;
  if (state.context && state.context != owner(caller)) {
    other.state = state.context;
    other.context_handle = state.context->handle;
    other.context = uint32_t(state.context->handle);
  }
  return other;
}

namespace {

// Lock: state.mutex.
FunctionState* known_function(const ModuleState& state, const std::string& name) noexcept {
  auto known = state.functions.find(name);
  return known == state.functions.end() ? nullptr : known->second.get();
}

CUresult ask(const Caller& caller, ModuleState& state, FunctionQuestions& questions, bool ahead) {
  CUresult result = ensure_loaded(caller, state, ahead ? &questions : nullptr);
  if (!result && !questions.under_way()) {
    if (ahead) questions.prefetch(caller);
    result = questions.begin(caller);
  }
  return result ? result : questions.finish(caller);
}

}  // namespace

CUresult find_function(const Caller& caller, ModuleState& state, std::string_view name, FunctionState*& out) {
  if (name.empty() || name.size() > wire::kNameBytesMax) return CUDA_ERROR_NOT_FOUND;
  std::lock_guard lock(state.mutex);
  std::string key(name);
  if ((out = known_function(state, key))) return CUDA_SUCCESS;
  Caller asking = caller_for(caller, state);
  FunctionQuestions questions(state);
  CUresult result = questions.add(asking, key);
  if (!result) result = ensure_loaded(asking, state, &questions);
  // The library may have been prefetched, and with it the function.
  if (!result && (questions.under_way() || !known_function(state, key))) result = ask(asking, state, questions, true);
  if (result) return result;
  out = known_function(state, key);
  if (state.known) state.known->used(key);
  if (state.unwritten)
    asking.server->prefetched_images.used(state.kind, *std::exchange(state.unwritten, std::nullopt), key);
  return CUDA_SUCCESS;
}

CUresult know_parameters(const Caller& caller, FunctionState& function) {
  if (function.parameters_known.load(std::memory_order_acquire)) [[likely]]
    return CUDA_SUCCESS;
  ModuleState& module = *function.module;
  std::lock_guard lock(module.mutex);
  if (function.parameters_known.load(std::memory_order_relaxed)) return CUDA_SUCCESS;  // another thread has stored them
  if (!function.parameters_reported) {
    CUresult untold = CUDA_SUCCESS;
    CUresult result =
        send::call_module_function(*caller.session, caller.context,
                                   {.module = module.server_handle(), .name = function.name, .handle = function.handle},
                                   [&](schema::FunctionFacts::Reader facts) {
                                     if (facts.getResult() == CUDA_SUCCESS) untold = store_parameters(facts, function);
                                   });
    if (!result && untold != CUDA_ERROR_INVALID_IMAGE) result = untold;
    if (result) return result;
  }
  return settle_parameters(function);
}

// The system call cannot read managed memory that is closed at present.
Reading reading_of(const Caller& caller, const FunctionState& function) noexcept {
  return function.parameters_of_server && !caller.server->managed_memory.any() ? Reading::what_is_there
                                                                               : Reading::as_natively;
}

CUresult find_functions(const Caller& caller, ModuleState& state, std::span<const std::string> names,
                        std::vector<FunctionState*>& out) {
  std::lock_guard lock(state.mutex);
  Caller asking = caller_for(caller, state);
  for (size_t begin = 0; begin < names.size(); begin += kPrefetchedKernelsMax) {
    auto batch = names.subspan(begin, std::min(kPrefetchedKernelsMax, names.size() - begin));
    FunctionQuestions questions(state);
    bool any = false;
    for (const std::string& name : batch) {
      if (known_function(state, name)) continue;
      if (CUresult error = questions.add(asking, name)) return error;
      any = true;
    }
    if (any) {
      if (CUresult error = ask(asking, state, questions, false)) return error;
    }
    for (const std::string& name : batch) {
      FunctionState* found = known_function(state, name);
      if (!found) return CUDA_ERROR_NOT_FOUND;
      out.push_back(found);
    }
  }
  return CUDA_SUCCESS;
}

CUresult list_names(const Caller& caller, ModuleState& state, std::vector<std::string>& out) {
  std::lock_guard lock(state.mutex);
  if (!state.names) {
    Caller asking = caller_for(caller, state);
    if (CUresult error = ensure_loaded(asking, state)) return error;
    std::vector<std::string> names;
    CUresult error = send::call_module_functions(*asking.session, asking.context, {.handle = state.server_handle()},
                                                 [&](schema::ModuleFunctions::Reader results) {
                                                   for (auto name : results.getNames())
                                                     names.emplace_back(name.cStr(), name.size());
                                                 });
    if (error) return error;
    state.names = std::move(names);
  }
  out = *state.names;
  return CUDA_SUCCESS;
}

CUresult find_variable(const Caller& caller, ModuleState& state, std::string_view name, bool managed, Variable& out) {
  if (name.empty() || name.size() > wire::kNameBytesMax) return CUDA_ERROR_NOT_FOUND;
  std::lock_guard lock(state.mutex);
  // A library's ordinary variable has one address in each context.
  uint64_t context = state.context ? state.context->handle : managed ? 0 : caller.context_handle;
  std::string key = (managed ? "m" : "g") + std::to_string(context) + ":" + std::string(name);
  if (auto known = state.variables.find(key); known != state.variables.end()) {
    out = known->second;
    return CUDA_SUCCESS;
  }
  Caller asking = caller_for(caller, state);
  if (CUresult error = ensure_loaded(asking, state)) return error;
  Variable variable{.managed = managed};
  uint64_t range_base = 0, range_bytes = 0;  // of the driver's allocation, when the variable is managed
  CUresult error = send::call_module_global(*asking.session, asking.context,
                                            {.module = state.server_handle(), .name = name, .managed = managed},
                                            [&](schema::ModuleGlobalReply::Reader results) {
                                              variable.address = results.getAddress();
                                              variable.bytes = results.getBytes();
                                              range_base = results.getRangeAddress();
                                              range_bytes = results.getRangeBytes();
                                            });
  if (error) return error;
  managed |= range_bytes != 0;
  AddressRange range{.base = variable.address,
                     .bytes = variable.bytes,
                     .kind = managed ? RangeKind::managed_variable : RangeKind::variable,
                     .device = asking.state ? asking.state->device : 0,
                     .server = asking.server,
                     .context = context,
                     .owner = state.handle};
  if (managed) {
    if (CUresult taken = map_managed_variable(range, range_base, range_bytes)) return taken;
    variable.managed = true;
  } else {
    range.reserved = address_reservations().reserve(range.base, range.bytes);
  }
  publish_range(range);
  state.variables.emplace(std::move(key), variable);
  out = variable;
  return CUDA_SUCCESS;
}

CUresult function_attribute(const Caller& caller, FunctionState& function, unsigned attribute, int device, int& value) {
  if (attribute >= kFunctionAttributes || device < 0 || size_t(device) >= function.on_device.size())
    return CUDA_ERROR_INVALID_VALUE;
  FunctionAttributes& known = function.on_device[device];
  const bool kept = !can_be_set(attribute) || !function.kernels_library();
  CUresult result;
  if (kept && known.get(attribute, value, result)) return result;
  result = function.kind == wire::HandleKind::kernel
               ? forward::cuKernelGetAttribute(caller, &value, CUfunction_attribute(attribute),
                                               reinterpret_cast<CUkernel>(function.handle), device)
               : forward::cuFuncGetAttribute(caller, &value, CUfunction_attribute(attribute),
                                             reinterpret_cast<CUfunction>(function.handle));
  if (kept && result == CUDA_SUCCESS) known.set(attribute, value, result);
  return result;
}

bool can_be_set(unsigned attribute) noexcept {
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: return true;
    default: return false;
  }
}

void retire_module(ModuleState* state) noexcept {
  void* attached = nullptr;
  if (!handles().forget(state->kind, state->handle, &attached) || attached != state) return;
  {
    std::lock_guard lock(state->mutex);
    for (auto& [name, function] : state->functions) end_function(*function);
    for (auto& function : state->derived) end_function(*function);
  }
  address_map().take_all(
      [&](const AddressRange& range) { return range.owner == state->handle && !is_host(range.kind); },
      [](const AddressRange& range) {
        if (range.kind == RangeKind::managed_variable) return forget_managed_variable(range);
        release_range(range);
      });
  if (state->came_as) handles().forget(state->kind, state->came_as);
  if (state->parameters && !state->library) state->parameters->forget_image();  // from now on the program may free it
  std::unique_ptr<ModuleState> oldest;
  Retired& queue = retired();
  MutexLock lock(queue.mutex);
  queue.modules.emplace_back(state);
  if (queue.modules.size() > kRetiredModules) {
    oldest = std::move(queue.modules.front());
    queue.modules.pop_front();
  }
}

void forget_modules_of(const ContextState& context) noexcept {
  std::vector<ModuleState*> ended;
  handles().for_each(wire::HandleKind::module, [&](uint64_t, void* object) {
    auto* state = static_cast<ModuleState*>(object);
    if (state && state->context == &context) ended.push_back(state);
  });
  for (ModuleState* state : ended) retire_module(state);
  // A library continues; only its state in this context ends.
  handles().for_each(wire::HandleKind::library, [&](uint64_t, void* object) {
    auto* library = static_cast<ModuleState*>(object);
    if (!library) return;
    std::lock_guard lock(library->mutex);
    auto* key = const_cast<ContextState*>(&context);
    library->modules.erase(key);
    std::string prefix = "g" + std::to_string(context.handle) + ":";
    std::erase_if(library->variables, [&](const auto& entry) { return entry.first.starts_with(prefix); });
    for (auto& [name, kernel] : library->functions) {
      std::lock_guard kernel_lock(kernel->mutex);
      if (auto made = kernel->functions.find(key); made != kernel->functions.end()) {
        end_function(*made->second);
        kernel->functions.erase(made);
      }
    }
  });
}

}  // namespace gpuwire::client
