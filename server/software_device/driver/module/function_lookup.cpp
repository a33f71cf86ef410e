#include "server/software_device/driver/module/function_lookup.hpp"

namespace gpuwire::software_device {

tl::expected<std::shared_ptr<Function>, CUresult> find_function(Context& context, CUfunction handle) {
  if (kind_of(handle) != HandleKind::kernel) {
    auto function = driver().functions.find(handle);
    const auto module = function == nullptr ? nullptr : function->module.lock();
    if (module == nullptr || module->context_handle() != context.handle()) {
      return tl::unexpected(CUDA_ERROR_INVALID_HANDLE);
    }
    return function;
  }
  const auto kernel = driver().kernels.find(reinterpret_cast<CUkernel>(handle));
  const auto library = kernel == nullptr ? nullptr : driver().libraries.find(kernel->library);
  if (library == nullptr) {
    return tl::unexpected(CUDA_ERROR_INVALID_HANDLE);
  }
  return library->instance(context).map(
      [&](const std::shared_ptr<ModuleInstance>& instance) { return instance->function(kernel->index); });
}

bool is_function(CUfunction handle) {
  return kind_of(handle) == HandleKind::kernel ? driver().kernels.find(reinterpret_cast<CUkernel>(handle)) != nullptr
                                               : driver().functions.find(handle) != nullptr;
}

uint32_t dynamic_shared_bytes_max(const KernelInfo& info, const FunctionSettings& settings) {
  const int chosen = settings.dynamic_shared_bytes_max.load(std::memory_order_relaxed);
  if (chosen >= 0) {
    return static_cast<uint32_t>(chosen);
  }
  return info.static_shared_bytes < kSharedBytesPerBlock ? kSharedBytesPerBlock - info.static_shared_bytes : 0;
}

}  // namespace gpuwire::software_device
