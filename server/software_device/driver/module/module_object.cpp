#include "server/software_device/driver/module/module_object.hpp"

#include <algorithm>
#include <cstring>

#include "server/software_device/driver/memory/allocation.hpp"
#include "server/software_device/driver/call/driver_state.hpp"

namespace gpuwire::software_device {
namespace {

uint64_t buffer_id_of(uint64_t address) {
  uint64_t out = 0;
  driver().memory.inspect(address, [&](const MemoryRange& range) { out = range.buffer_id; });
  return out;
}

void copy_initial(const VariableInfo& variable, uint64_t address) {
  auto* const target = reinterpret_cast<uint8_t*>(address);
  const size_t given = std::min<uint64_t>(variable.initial.size(), variable.size_bytes);
  std::copy_n(variable.initial.begin(), given, target);
  std::memset(target + given, 0, variable.size_bytes - given);
}

}  // namespace

size_t find_variable(const Program& program, std::string_view name) {
  const auto& variables = program.variables();
  const auto found = std::find_if(variables.begin(), variables.end(),
                                  [&](const VariableInfo& variable) { return variable.name == name; });
  return found == variables.end() ? SIZE_MAX : static_cast<size_t>(found - variables.begin());
}

size_t find_kernel(const Program& program, std::string_view name) {
  const auto& kernels = program.kernels();
  const auto found =
      std::find_if(kernels.begin(), kernels.end(), [&](const KernelInfo& kernel) { return kernel.name == name; });
  return found == kernels.end() ? SIZE_MAX : static_cast<size_t>(found - kernels.begin());
}

// --- managed variables

tl::expected<uint64_t, CUresult> ManagedVariables::address(const Program& program, size_t variable, Device& device) {
  const MutexLock lock(mutex_);
  if (const auto found = variables_.find(variable); found != variables_.end()) {
    return found->second.first;
  }
  const VariableInfo& info = program.variables()[variable];
  const auto address = allocate_range({.bytes = info.size_bytes,
                                       .kind = MemoryKind::managed,
                                       .device = device.ordinal,
                                       .flags = CU_MEM_ATTACH_GLOBAL,
                                       .variable = true},
                                      device, info.alignment_bytes);
  if (address) {
    copy_initial(info, *address);
    variables_.emplace(variable, std::pair(*address, buffer_id_of(*address)));
  }
  return address;
}

ManagedVariables::~ManagedVariables() {
  for (const auto& [variable, place] : variables_) {
    driver().memory.remove_buffer(place.first, place.second);
  }
}

// --- modules

tl::expected<std::shared_ptr<ModuleInstance>, CUresult> ModuleInstance::create(
    std::shared_ptr<const Program> program, Context& context, std::shared_ptr<ManagedVariables> managed) {
  auto instance = std::make_shared<ModuleInstance>();
  instance->handle_ = driver().modules.reserve();
  instance->program_ = std::move(program);
  instance->managed_ = std::move(managed);
  instance->context_ = context.weak_from_this();
  instance->context_handle_ = context.handle();
  instance->self_ = instance;
  if (const CUresult result = instance->place_variables(context); result != CUDA_SUCCESS) {
    return tl::unexpected(result);
  }
  if (const CUresult result = instance->write_initial_values(); result != CUDA_SUCCESS) {
    return tl::unexpected(result);
  }
  driver().modules.insert(instance->handle_, instance);
  return instance;
}

ModuleInstance::~ModuleInstance() {
  for (const auto& [address, buffer_id] : owned_) {
    driver().memory.remove_buffer(address, buffer_id);
  }
}

CUresult ModuleInstance::place_variables(Context& context) {
  const auto& variables = program_->variables();
  addresses_.resize(variables.size());
  for (size_t i = 0; i < variables.size(); ++i) {
    const VariableInfo& variable = variables[i];
    if (variable.external || variable.size_bytes == 0) {
      continue;
    }
    tl::expected<uint64_t, CUresult> address;
    if (variable.managed) {
      address = managed_->address(*program_, i, context.device());
    } else {
      const uint32_t mine = 1u << context.device().ordinal;
      address = allocate_range({.bytes = variable.size_bytes,
                                .kind = MemoryKind::device,
                                .device = context.device().ordinal,
                                .context = context.handle(),
                                .variable = true,
                                .readable_by = mine,
                                .writable_by = variable.space == VariableSpace::constant ? 0 : mine},
                               context.device(), variable.alignment_bytes);
    }
    if (!address) {
      return address.error();
    }
    addresses_[i] = *address;
    if (!variable.managed) {
      owned_.emplace_back(*address, buffer_id_of(*address));
      copy_initial(variable, *address);
    }
  }
  return CUDA_SUCCESS;
}

CUresult ModuleInstance::write_initial_values() {
  const auto& variables = program_->variables();
  for (size_t i = 0; i < variables.size(); ++i) {
    for (const VariableInfo::Pointer& pointer : variables[i].pointers) {
      const size_t target = find_variable(*program_, pointer.target);
      const uint64_t base = target != SIZE_MAX ? addresses_[target] : program_->function_address(pointer.target);
      if (base == 0 || addresses_[i] == 0 || pointer.offset_bytes > variables[i].size_bytes ||
          variables[i].size_bytes - pointer.offset_bytes < sizeof base) {
        return CUDA_ERROR_INVALID_IMAGE;
      }
      const uint64_t value = base + static_cast<uint64_t>(pointer.addend);
      std::memcpy(reinterpret_cast<uint8_t*>(addresses_[i]) + pointer.offset_bytes, &value, sizeof value);
    }
  }
  return CUDA_SUCCESS;
}

std::shared_ptr<Function> ModuleInstance::function(std::string_view name) {
  const size_t index = find_kernel(*program_, name);
  return index == SIZE_MAX ? nullptr : function(index);
}

std::shared_ptr<Function> ModuleInstance::function(size_t index) {
  const MutexLock lock(mutex_);
  auto& function = functions_[index];
  if (function == nullptr) {
    auto& settings = settings_[index];
    if (settings == nullptr) {
      settings = std::make_shared<FunctionSettings>();
    }
    function = std::make_shared<Function>();
    function->handle = driver().functions.reserve();
    function->module = self_;
    function->program = program_;
    function->index = index;
    function->settings = settings;
    driver().functions.insert(function->handle, function);
  }
  return function;
}

void ModuleInstance::share_settings(size_t index, std::shared_ptr<FunctionSettings> settings) {
  const MutexLock lock(mutex_);
  settings_[index] = std::move(settings);
}

void ModuleInstance::release_handles() {
  driver().modules.take(handle_);
  const MutexLock lock(mutex_);
  for (const auto& [index, function] : functions_) {
    driver().functions.take(function->handle);
  }
  functions_.clear();
}

// --- libraries

Library::Library(CUlibrary handle, std::shared_ptr<const Program> program)
    : handle_(handle), program_(std::move(program)) {
  for (size_t i = 0; i < program_->kernels().size(); ++i) {
    auto kernel = std::make_shared<Kernel>();
    kernel->handle = driver().kernels.reserve();
    kernel->library = handle_;
    kernel->program = program_;
    kernel->index = i;
    for (size_t device = 0; device < driver().devices.size(); ++device) {
      kernel->settings.push_back(std::make_shared<FunctionSettings>());
    }
    driver().kernels.insert(kernel->handle, kernel);
    kernels_.push_back(std::move(kernel));
  }
}

std::shared_ptr<Kernel> Library::kernel(std::string_view name) const {
  const size_t index = find_kernel(*program_, name);
  return index == SIZE_MAX ? nullptr : kernels_[index];
}

bool Library::is_in(Context& context) const {
  const MutexLock lock(context.code_mutex);
  return context.library_instances.contains(handle_);
}

tl::expected<std::shared_ptr<ModuleInstance>, CUresult> Library::instance(Context& context) {
  if (driver().loads_wait && !is_in(context)) {
    static_cast<void>(context.synchronize());
  }
  const MutexLock lock(context.code_mutex);
  auto& mine = context.library_instances[handle_];
  if (mine == nullptr) {
    auto created = ModuleInstance::create(program_, context, managed_);
    if (!created) {
      context.library_instances.erase(handle_);
      return created;
    }
    mine = *std::move(created);
    mine->library = handle_;
    for (const auto& kernel : kernels_) {
      mine->share_settings(kernel->index, kernel->settings[static_cast<size_t>(context.device().ordinal)]);
    }
  }
  return mine;
}

void Library::unload() {
  for (const auto& kernel : kernels_) {
    driver().kernels.take(kernel->handle);
  }
  for (const auto& slot : driver().contexts.all()) {
    const auto context = slot->live();
    if (context == nullptr) {
      continue;
    }
    const MutexLock lock(context->code_mutex);
    if (const auto found = context->library_instances.find(handle_); found != context->library_instances.end()) {
      found->second->release_handles();
      context->library_instances.erase(found);
    }
  }
}

}  // namespace gpuwire::software_device
