// Programs and their instances. A program that is loaded into a context has variables of its own there.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <cuda.h>
#include <tl/expected.hpp>

#include "protocol/threads/mutex.hpp"
#include "server/software_device/execution/engine.hpp"

namespace gpuwire::software_device {

class Context;
struct Device;
class ModuleInstance;
class Library;

// The settings that cuFuncSetAttribute and cuKernelSetAttribute change, for each function and device. Relaxed atomics,
// because the settings are independent.
struct FunctionSettings {
  std::atomic<int> dynamic_shared_bytes_max{-1};  // -1: as much as fits into 48 KiB beside the static part
  std::atomic<int> shared_carveout{-1};
  std::atomic<bool> non_portable_cluster{false};
  std::atomic<int> cluster_policy{CU_CLUSTER_SCHEDULING_POLICY_DEFAULT};
  std::atomic<CUfunc_cache> cache_config{CU_FUNC_CACHE_PREFER_NONE};
};

// The object of a CUfunction: a kernel of a module in its context.
struct Function {
  CUfunction handle = nullptr;
  std::weak_ptr<ModuleInstance> module;
  std::shared_ptr<const Program> program;
  size_t index = 0;
  std::shared_ptr<FunctionSettings> settings;

  const KernelInfo& info() const noexcept { return program->kernels()[index]; }
};

// The object of a CUkernel: a kernel of a library, without a context.
struct Kernel {
  CUkernel handle = nullptr;
  CUlibrary library = nullptr;
  std::shared_ptr<const Program> program;
  size_t index = 0;
  std::vector<std::shared_ptr<FunctionSettings>> settings;  // by device ordinal

  const KernelInfo& info() const noexcept { return program->kernels()[index]; }
};

// The managed variables of a library, at one address for all contexts and devices.
class ManagedVariables {
 public:
  // Returns the address of the program's variable with that index. Created at first use, and charged to `device`.
  tl::expected<uint64_t, CUresult> address(const Program& program, size_t variable, Device& device);
  ~ManagedVariables();

 private:
  Mutex mutex_;
  std::map<size_t, std::pair<uint64_t, uint64_t>> variables_ GUARDED_BY(mutex_);  // address and buffer id
};

// A program in a context.
class ModuleInstance {
 public:
  // Allocates and initialises every variable. Errors: CUDA_ERROR_OUT_OF_MEMORY; CUDA_ERROR_INVALID_IMAGE if a variable
  // points to nothing.
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

  // Returns null if the program has no such kernel, or if the handles were released.
  std::shared_ptr<Function> function(std::string_view name);
  std::shared_ptr<Function> function(size_t index);
  // Instances of a library share the settings of its kernels on that device.
  void share_settings(size_t index, std::shared_ptr<FunctionSettings> settings);
  // Removes the module and its functions from the handle tables. The variables are released with the last launch or
  // graph that uses them.
  void release_handles();

 private:
  CUresult place_variables(Context& context);
  CUresult write_initial_values();

  CUmodule handle_ = nullptr;
  std::shared_ptr<const Program> program_;
  std::shared_ptr<ManagedVariables> managed_;
  std::weak_ptr<Context> context_;
  CUcontext context_handle_ = nullptr;
  std::vector<uint64_t> addresses_;  // by variable
  // Address and buffer id of the variables that only this instance uses.
  std::vector<std::pair<uint64_t, uint64_t>> owned_;
  std::weak_ptr<ModuleInstance> self_;
  Mutex mutex_;
  std::map<size_t, std::shared_ptr<Function>> functions_ GUARDED_BY(mutex_);
  std::map<size_t, std::shared_ptr<FunctionSettings>> settings_ GUARDED_BY(mutex_);
};

// The object of a CUlibrary: a program that is instantiated in a context at its first use there.
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
  // Removes the kernels and all instances from the handle tables.
  void unload();

 private:
  const CUlibrary handle_;
  std::shared_ptr<const Program> program_;
  std::shared_ptr<ManagedVariables> managed_ = std::make_shared<ManagedVariables>();
  std::vector<std::shared_ptr<Kernel>> kernels_;
};

// Returns the variable that cuModuleGetGlobal finds by that name, or SIZE_MAX if there is none.
size_t find_variable(const Program& program, std::string_view name);
size_t find_kernel(const Program& program, std::string_view name);

}  // namespace gpuwire::software_device
