// Programs and their instances: a program loaded into a context has variables of its own there.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include <cuda.h>
#include <tl/expected.hpp>

#include "server/software_device/execution/engine.hpp"

namespace gpuwire::software_device {

class Context;
struct Device;
class ModuleInstance;
class Library;

// The values that cuFuncSetAttribute and cuKernelSetAttribute change, per function and device. Atomics without order:
// plain settings.
struct FunctionSettings {
  std::atomic<int> dynamic_shared_bytes_max{-1};  // -1: as much as fits in 48 KiB beside the static part
  std::atomic<int> shared_carveout{-1};
  std::atomic<bool> non_portable_cluster{false};
  std::atomic<int> cluster_policy{CU_CLUSTER_SCHEDULING_POLICY_DEFAULT};
  std::atomic<CUfunc_cache> cache_config{CU_FUNC_CACHE_PREFER_NONE};
};

// CUfunction: a kernel of a module in its context.
struct Function {
  CUfunction handle = nullptr;
  std::weak_ptr<ModuleInstance> module;
  std::shared_ptr<const Program> program;
  size_t index = 0;
  std::shared_ptr<FunctionSettings> settings;

  const KernelInfo& info() const noexcept { return program->kernels()[index]; }
};

// CUkernel: a kernel of a library, of no context.
struct Kernel {
  CUkernel handle = nullptr;
  CUlibrary library = nullptr;
  std::shared_ptr<const Program> program;
  size_t index = 0;
  std::vector<std::shared_ptr<FunctionSettings>> settings;  // by device ordinal

  const KernelInfo& info() const noexcept { return program->kernels()[index]; }
};

// Where managed variables are: one place for all contexts and devices of a library.
class ManagedVariables {
 public:
  // Address of the program's variable of that index; created on first use, and charged to that device.
  tl::expected<uint64_t, CUresult> address(const Program& program, size_t variable, Device& device);
  ~ManagedVariables();

 private:
  std::mutex mutex_;
  std::map<size_t, std::pair<uint64_t, uint64_t>> variables_;  // address and buffer id
};

// A program in a context.
class ModuleInstance {
 public:
  // Gives every variable memory and its initial value. CUDA_ERROR_OUT_OF_MEMORY; CUDA_ERROR_INVALID_IMAGE when a
  // variable points nowhere.
  static tl::expected<std::shared_ptr<ModuleInstance>, CUresult> create(std::shared_ptr<const Program> program,
                                                                        Context& context,
                                                                        std::shared_ptr<ManagedVariables> managed);
  ~ModuleInstance();

  CUmodule handle() const noexcept { return handle_; }
  const Program& program() const noexcept { return *program_; }
  std::weak_ptr<Context> context() const noexcept { return context_; }
  CUcontext context_handle() const noexcept { return context_handle_; }
  const std::vector<uint64_t>& variable_addresses() const noexcept { return addresses_; }
  // Set for an instance of a library.
  CUlibrary library = nullptr;

  // Null when the program has no such kernel or the handles are gone.
  std::shared_ptr<Function> function(std::string_view name);
  std::shared_ptr<Function> function(size_t index);
  // Instances of a library share the settings of its kernels on that device.
  void share_settings(size_t index, std::shared_ptr<FunctionSettings> settings);
  // Takes the module and its functions out of the handle tables. The variables go with the last launch or graph that
  // uses them.
  void release_handles();

 private:
  CUresult place_variables(Context& context);
  CUresult write_initial_values();

  CUmodule handle_ = nullptr;
  std::shared_ptr<const Program> program_;
  std::shared_ptr<ManagedVariables> managed_;
  std::weak_ptr<Context> context_;
  CUcontext context_handle_ = nullptr;
  std::vector<uint64_t> addresses_;                   // by variable
  std::vector<std::pair<uint64_t, uint64_t>> owned_;  // address and buffer id of those that are this instance's alone
  std::weak_ptr<ModuleInstance> self_;
  std::mutex mutex_;
  std::map<size_t, std::shared_ptr<Function>> functions_;
  std::map<size_t, std::shared_ptr<FunctionSettings>> settings_;
};

// CUlibrary: a program that is instantiated in a context when it is first used there.
class Library {
 public:
  Library(CUlibrary handle, std::shared_ptr<const Program> program);

  CUlibrary handle() const noexcept { return handle_; }
  const Program& program() const noexcept { return *program_; }
  const std::vector<std::shared_ptr<Kernel>>& kernels() const noexcept { return kernels_; }
  std::shared_ptr<Kernel> kernel(std::string_view name) const;
  tl::expected<std::shared_ptr<ModuleInstance>, CUresult> instance(Context& context);
  bool is_in(Context& context) const;
  tl::expected<uint64_t, CUresult> managed_address(size_t variable, Device& device) {
    return managed_->address(*program_, variable, device);
  }
  // Takes the kernels and all instances out of the handle tables.
  void unload();

 private:
  const CUlibrary handle_;
  std::shared_ptr<const Program> program_;
  std::shared_ptr<ManagedVariables> managed_ = std::make_shared<ManagedVariables>();
  std::vector<std::shared_ptr<Kernel>> kernels_;
};

// The variable that cuModuleGetGlobal finds by that name; SIZE_MAX when there is none.
size_t find_variable(const Program& program, std::string_view name);
size_t find_kernel(const Program& program, std::string_view name);

}  // namespace gpuwire::software_device
