// Contexts: creation, the calling thread's stack, settings.
#include <memory>

#include "server/software_device/driver/call/api.hpp"
#include "server/software_device/driver/call/refusal.hpp"

using namespace gpuwire::software_device;

namespace {

constexpr unsigned kCreateFlags = CU_CTX_FLAGS_MASK;
constexpr int kLeastPriority = 0;
constexpr int kGreatestPriority = -5;

bool valid_flags(unsigned flags) {
  const unsigned scheduling = flags & CU_CTX_SCHED_MASK;
  return (flags & ~kCreateFlags) == 0 && (scheduling & (scheduling - 1)) == 0;
}

CUresult create_context(CUcontext* out, unsigned flags, CUdevice ordinal) {
  Device* const device = driver().device(ordinal);
  if (out == nullptr || !valid_flags(flags)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (device == nullptr) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  auto slot = std::make_shared<ContextSlot>();
  slot->handle = driver().contexts.reserve();
  slot->device = device;
  slot->context = std::make_shared<Context>(*device, slot->handle, flags, driver().next_context_id());
  driver().contexts.insert(slot->handle, slot);
  context_stack().push_back(slot);
  *out = slot->handle;
  return CUDA_SUCCESS;
}

// Runs `body` on the context `handle`, or on the current one if `handle` is null.
template <typename Body>
CUresult with_named_context(CUcontext handle, Body&& body) noexcept {
  if (handle == nullptr) {
    return with_any_context(std::forward<Body>(body));
  }
  return with_driver([&]() -> CUresult {
    const auto slot = driver().contexts.find(handle);
    if (slot == nullptr) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    const auto context = slot->live();
    return context == nullptr ? CUDA_ERROR_CONTEXT_IS_DESTROYED : body(*context);
  });
}

}  // namespace

CUresult cuCtxCreate_v2(CUcontext* out, unsigned int flags, CUdevice device) {
  return with_driver([&] { return create_context(out, flags, device); });
}

CUresult cuCtxCreate_v3(CUcontext* out, CUexecAffinityParam*, int affinities, unsigned int flags, CUdevice device) {
  return with_driver(
      [&] { return affinities != 0 ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : create_context(out, flags, device); });
}

CUresult cuCtxCreate_v4(CUcontext* out, CUctxCreateParams* parameters, unsigned int flags, CUdevice device) {
  return with_driver([&]() -> CUresult {
    if (parameters != nullptr && parameters->numExecAffinityParams != 0) {
      return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    }
    if (parameters != nullptr && parameters->cigParams != nullptr) {
      return not_supported("CUDA in graphics");
    }
    return create_context(out, flags, device);
  });
}

CUresult cuCtxDestroy_v2(CUcontext handle) {
  if (handle == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return with_driver([&]() -> CUresult {
    const auto slot = driver().contexts.find(handle);
    if (slot == nullptr || slot->primary || slot->green_of != nullptr) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    std::shared_ptr<Context> context;
    {
      const std::lock_guard lock(slot->mutex);
      context = std::move(slot->context);
    }
    if (context == nullptr) {
      return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    context->shut_down();
    // Only the top of this thread's stack is popped. Deeper in the stack and in other threads the handle stays, like on
    // NVIDIA's driver.
    auto& stack = context_stack();
    if (!stack.empty() && stack.back() == slot) {
      stack.pop_back();
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxDestroy(CUcontext handle) { return cuCtxDestroy_v2(handle); }

CUresult cuCtxPushCurrent_v2(CUcontext handle) {
  return with_driver([&]() -> CUresult {
    const auto slot = driver().contexts.find(handle);
    if (slot == nullptr) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!slot->primary && slot->live() == nullptr) {
      return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    context_stack().push_back(slot);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxPopCurrent_v2(CUcontext* out) {
  return with_driver([&]() -> CUresult {
    auto& stack = context_stack();
    if (stack.empty()) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (out != nullptr) {
      *out = stack.back()->handle;
    }
    stack.pop_back();
    return CUDA_SUCCESS;
  });
}

// The first version refuses a context that is current (measured on driver 580).
CUresult cuCtxPushCurrent(CUcontext handle) {
  const auto& stack = context_stack();
  if (handle != nullptr && !stack.empty() && stack.back()->handle == handle) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  return cuCtxPushCurrent_v2(handle);
}
CUresult cuCtxPopCurrent(CUcontext* out) { return cuCtxPopCurrent_v2(out); }

CUresult cuCtxSetCurrent(CUcontext handle) {
  return with_driver([&]() -> CUresult {
    auto& stack = context_stack();
    if (handle == nullptr) {
      if (!stack.empty()) {
        stack.pop_back();
      }
      return CUDA_SUCCESS;
    }
    auto slot = driver().contexts.find(handle);
    if (slot == nullptr) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (stack.empty()) {
      stack.push_back(std::move(slot));
    } else {
      stack.back() = std::move(slot);
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetCurrent(CUcontext* out) {
  return with_driver([&]() -> CUresult {
    if (out == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const auto slot = current_slot();
    *out = slot == nullptr ? nullptr : slot->handle;
    return CUDA_SUCCESS;
  });
}

// A context that is not active still has its device.
CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext handle) {
  return with_driver([&]() -> CUresult {
    if (device == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const auto slot = handle == nullptr ? current_slot() : driver().contexts.find(handle);
    if (slot == nullptr) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!slot->primary && slot->live() == nullptr) {
      return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    *device = slot->device->ordinal;
    return CUDA_SUCCESS;
  });
}

// In the first version a missing context comes first.
CUresult cuCtxGetDevice(CUdevice* device) {
  CUdevice found = 0;
  const CUresult missing = cuCtxGetDevice_v2(&found, nullptr);
  return missing != CUDA_SUCCESS ? missing : cuCtxGetDevice_v2(device, nullptr);
}

CUresult cuCtxSynchronize() { return cuCtxSynchronize_v2(nullptr); }

CUresult cuCtxSynchronize_v2(CUcontext handle) {
  return with_named_context(handle, [&](Context& context) {
    const auto slot = handle == nullptr ? current_slot() : driver().contexts.find(handle);
    CUresult result = context.fault();
    if (result == CUDA_SUCCESS) {
      result = permit_synchronisation(context, slot.get());
    }
    return result == CUDA_SUCCESS ? context.synchronize() : result;
  });
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long* id) {
  return with_named_context(handle, [&](Context& context) -> CUresult {
    if (id == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (handle == nullptr && context.fault() != CUDA_SUCCESS) {
      return context.fault();  // only if the context is not named (measured on driver 580)
    }
    *id = context.id();
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int* version) {
  const CUresult result = with_named_context(handle, [&](Context& context) -> CUresult {
    if (handle == nullptr && context.fault() != CUDA_SUCCESS) {
      return context.fault();
    }
    if (version == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *version = context.api_version;
    return CUDA_SUCCESS;
  });
  return handle != nullptr && result == CUDA_ERROR_CONTEXT_IS_DESTROYED ? CUDA_ERROR_INVALID_CONTEXT
                                                                        : result;  // measured on driver 580
}

CUresult cuCtxGetFlags(unsigned int* flags) {
  return with_any_context([&](Context& context) -> CUresult {
    if (flags == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::lock_guard lock(context.settings_mutex);
    // A primary context always has CU_CTX_MAP_HOST; a created one has the flags of its creation (measured on driver
    // 580).
    const auto slot = driver().contexts.find(context.handle());
    *flags = context.flags | (slot != nullptr && slot->primary ? unsigned(CU_CTX_MAP_HOST) : 0u);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetFlags(unsigned int flags) {
  return with_any_context([&](Context& context) -> CUresult {
    if (!valid_flags(flags)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::lock_guard lock(context.settings_mutex);
    context.flags = flags;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return with_context([&](Context&) -> CUresult {
    if (least != nullptr) {
      *least = kLeastPriority;
    }
    if (greatest != nullptr) {
      *greatest = kGreatestPriority;
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
  return with_context([&](Context& context) -> CUresult {
    if (value == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::lock_guard lock(context.settings_mutex);
    switch (limit) {
      case CU_LIMIT_STACK_SIZE: *value = context.limits.stack_bytes; return CUDA_SUCCESS;
      case CU_LIMIT_PRINTF_FIFO_SIZE: *value = context.limits.printf_fifo_bytes; return CUDA_SUCCESS;
      case CU_LIMIT_MALLOC_HEAP_SIZE: *value = context.limits.malloc_heap_bytes; return CUDA_SUCCESS;
      case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT: *value = context.limits.pending_launches; return CUDA_SUCCESS;
      case CU_LIMIT_MAX_L2_FETCH_GRANULARITY: *value = context.limits.l2_fetch_bytes; return CUDA_SUCCESS;
      case CU_LIMIT_PERSISTING_L2_CACHE_SIZE: *value = context.limits.persisting_l2_bytes; return CUDA_SUCCESS;
      case CU_LIMIT_SHMEM_SIZE: *value = kSharedBytesPerBlockOptIn; return CUDA_SUCCESS;
      case CU_LIMIT_CIG_ENABLED: *value = 0; return CUDA_SUCCESS;
      case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
      case CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED: return CUDA_ERROR_UNSUPPORTED_LIMIT;
      default: return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  return with_context([&](Context& context) -> CUresult {
    const std::lock_guard lock(context.settings_mutex);
    switch (limit) {
      case CU_LIMIT_STACK_SIZE: context.limits.stack_bytes = (value + 15) / 16 * 16; return CUDA_SUCCESS;
      case CU_LIMIT_PRINTF_FIFO_SIZE: context.limits.printf_fifo_bytes = value; return CUDA_SUCCESS;
      case CU_LIMIT_MALLOC_HEAP_SIZE:
        context.limits.malloc_heap_bytes = value;
        context.heap_limit_bytes.store(value, std::memory_order_relaxed);
        return CUDA_SUCCESS;
      case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT: context.limits.pending_launches = value; return CUDA_SUCCESS;
      case CU_LIMIT_MAX_L2_FETCH_GRANULARITY: context.limits.l2_fetch_bytes = value; return CUDA_SUCCESS;
      case CU_LIMIT_PERSISTING_L2_CACHE_SIZE: return value == 0 ? CUDA_SUCCESS : CUDA_ERROR_UNSUPPORTED_LIMIT;
      case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
      case CU_LIMIT_SHMEM_SIZE:
      case CU_LIMIT_CIG_ENABLED:
      case CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED: return CUDA_ERROR_UNSUPPORTED_LIMIT;
      default: return CUDA_ERROR_INVALID_VALUE;
    }
  });
}

CUresult cuCtxGetCacheConfig(CUfunc_cache* config) {
  return with_context([&](Context& context) -> CUresult {
    if (config == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::lock_guard lock(context.settings_mutex);
    *config = context.cache_config;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
  return with_context([&](Context& context) -> CUresult {
    if (config < CU_FUNC_CACHE_PREFER_NONE || config > CU_FUNC_CACHE_PREFER_EQUAL) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::lock_guard lock(context.settings_mutex);
    context.cache_config = config;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig* config) {
  return with_context([&](Context& context) -> CUresult {
    if (config == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::lock_guard lock(context.settings_mutex);
    *config = context.shared_config;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) {
  return with_context([&](Context&) -> CUresult {
    return config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  });
}

CUresult cuCtxResetPersistingL2Cache() {
  return with_context([](Context&) { return CUDA_SUCCESS; });
}
