// Green contexts: the primary context under another handle, whose kernels run on some of the device's multiprocessors.
#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <utility>

#include "server/software_device/driver/call/api.hpp"

using namespace gpuwire::software_device;

namespace {

// Parts are multiples of this many multiprocessors.
constexpr unsigned kPartition = 2;
constexpr uint32_t kMagic = 0x6e656572;
constexpr uint32_t kDeviceProcessors = (1u << kMultiprocessors) - 1;

// The content of a resource's opaque bytes.
struct Part {
  uint32_t magic = kMagic;
  int32_t device = 0;
  uint32_t processors = 0;
};
static_assert(sizeof(Part) <= sizeof(CUdevResource::_internal_padding));

CUdevResource resource_of(Part part) {
  CUdevResource resource{};
  if (part.processors == 0) {
    return resource;
  }
  resource.type = CU_DEV_RESOURCE_TYPE_SM;
  std::memcpy(resource._internal_padding, &part, sizeof part);
  resource.sm.smCount = static_cast<unsigned>(std::popcount(part.processors));
  resource.sm.minSmPartitionSize = kPartition;
  resource.sm.smCoscheduledAlignment = kPartition;
  return resource;
}

CUresult part_of(const CUdevResource& resource, Part& part) {
  if (resource.type != CU_DEV_RESOURCE_TYPE_SM) {
    return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  }
  std::memcpy(&part, resource._internal_padding, sizeof part);
  const bool known = part.magic == kMagic && driver().device(part.device) != nullptr && part.processors != 0 &&
                     (part.processors & ~kDeviceProcessors) == 0;
  return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
}

// Removes the lowest `count` multiprocessors from a set and returns them.
uint32_t take_lowest(uint32_t& processors, unsigned count) {
  uint32_t taken = 0;
  for (; count > 0; --count) {
    const uint32_t lowest = processors & (~processors + 1);
    taken |= lowest;
    processors &= ~lowest;
  }
  return taken;
}

CUresult give(CUdevResource* out, CUdevResourceType type, const Part& part) {
  if (out == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (type != CU_DEV_RESOURCE_TYPE_SM) {
    return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  }
  *out = resource_of(part);
  return CUDA_SUCCESS;
}

template <typename Body>
CUresult with_green(CUgreenCtx handle, Body&& body) noexcept {
  return with_driver([&]() -> CUresult {
    const auto slot = driver().contexts.find(reinterpret_cast<CUcontext>(handle));
    if (slot == nullptr || slot->green_of == nullptr) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    const auto context = slot->live();
    return context == nullptr ? CUDA_ERROR_CONTEXT_IS_DESTROYED : body(slot, *context);
  });
}

}  // namespace

CUresult cuDeviceGetDevResource(CUdevice ordinal, CUdevResource* resource, CUdevResourceType type) {
  return with_driver([&]() -> CUresult {
    return driver().device(ordinal) == nullptr
               ? CUDA_ERROR_INVALID_DEVICE
               : give(resource, type, {.device = ordinal, .processors = kDeviceProcessors});
  });
}

CUresult cuCtxGetDevResource(CUcontext handle, CUdevResource* resource, CUdevResourceType type) {
  return with_driver([&]() -> CUresult {
    const auto slot = driver().contexts.find(handle);
    if (slot == nullptr || slot->live() == nullptr) {
      return slot == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    return give(resource, type, {.device = slot->device->ordinal, .processors = slot->processors & kDeviceProcessors});
  });
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx handle, CUdevResource* resource, CUdevResourceType type) {
  return with_green(handle, [&](const std::shared_ptr<ContextSlot>& slot, Context&) {
    return cuCtxGetDevResource(slot->handle, resource, type);
  });
}

CUresult cuDevSmResourceSplitByCount(CUdevResource* result, unsigned int* groups, const CUdevResource* input,
                                     CUdevResource* remaining, unsigned int flags, unsigned int minimum) {
  return with_driver([&]() -> CUresult {
    Part part;
    if (groups == nullptr || input == nullptr || (flags & ~3u) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult error = part_of(*input, part); error != CUDA_SUCCESS) {
      return error;
    }
    const auto count = static_cast<unsigned>(std::popcount(part.processors));
    const unsigned size = std::max((minimum + kPartition - 1) / kPartition * kPartition, kPartition);
    if (minimum > count || size > count) {
      return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    }
    if (result == nullptr) {
      *groups = count / size;
      return CUDA_SUCCESS;
    }
    *groups = std::min(*groups, count / size);
    Part rest = part;
    for (unsigned i = 0; i < *groups; ++i) {
      result[i] = resource_of({.device = part.device, .processors = take_lowest(rest.processors, size)});
    }
    if (remaining != nullptr) {
      *remaining = resource_of(rest);
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* out, CUdevResource* resources, unsigned int count) {
  return with_driver([&]() -> CUresult {
    if (out == nullptr || resources == nullptr || count == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    Part all;
    for (unsigned i = 0; i < count; ++i) {
      Part part;
      if (const CUresult error = part_of(resources[i], part); error != CUDA_SUCCESS) {
        return error;
      }
      if ((i != 0 && part.device != all.device) || (all.processors & part.processors) != 0) {
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
      }
      all.device = part.device;
      all.processors |= part.processors;
    }
    const CUdevResourceDesc handle = driver().resource_descriptors.reserve();
    driver().resource_descriptors.insert(
        handle, std::make_shared<ResourceDescriptor>(ResourceDescriptor{all.device, all.processors}));
    *out = handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuGreenCtxCreate(CUgreenCtx* out, CUdevResourceDesc handle, CUdevice ordinal, unsigned int flags) {
  return with_driver([&]() -> CUresult {
    Device* const device = driver().device(ordinal);
    if (device == nullptr) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    const auto descriptor = handle == nullptr
                                ? std::make_shared<ResourceDescriptor>(ResourceDescriptor{ordinal, kDeviceProcessors})
                                : driver().resource_descriptors.find(handle);
    if (out == nullptr || descriptor == nullptr || descriptor->device != ordinal ||
        flags != CU_GREEN_CTX_DEFAULT_STREAM) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    CUcontext primary = nullptr;
    if (const CUresult error = cuDevicePrimaryCtxRetain(&primary, ordinal); error != CUDA_SUCCESS) {
      return error;
    }
    auto slot = std::make_shared<ContextSlot>();
    slot->handle = driver().contexts.reserve();
    slot->device = device;
    slot->green_of = device->primary;
    slot->processors = descriptor->processors;
    slot->green_id = driver().next_context_id();
    slot->context = device->primary->live();
    driver().contexts.insert(slot->handle, slot);
    {
      const std::lock_guard lock(device->primary_mutex);
      ++device->greens;
    }
    *out = reinterpret_cast<CUgreenCtx>(slot->handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuGreenCtxDestroy(CUgreenCtx handle) {
  return with_green(handle, [](const std::shared_ptr<ContextSlot>& slot, Context& context) -> CUresult {
    context.synchronize();
    {
      const std::lock_guard lock(slot->mutex);
      if (std::exchange(slot->context, nullptr) == nullptr) {
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
      }
    }
    {
      const std::lock_guard lock(slot->device->primary_mutex);
      --slot->device->greens;
    }
    return cuDevicePrimaryCtxRelease_v2(slot->device->ordinal);
  });
}

CUresult cuCtxFromGreenCtx(CUcontext* out, CUgreenCtx handle) {
  return with_green(handle, [&](const std::shared_ptr<ContextSlot>& slot, Context&) -> CUresult {
    if (out == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *out = slot->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuGreenCtxGetId(CUgreenCtx handle, unsigned long long* id) {
  // Without a handle, the current context's fault is reported first, but after a null pointer (measured on driver 580).
  const auto current = handle == nullptr ? current_slot() : nullptr;
  const auto context = current == nullptr ? nullptr : current->live();
  if (context != nullptr && context->fault() != CUDA_SUCCESS) {
    return id == nullptr ? CUDA_ERROR_INVALID_VALUE : context->fault();
  }
  return with_green(handle, [&](const std::shared_ptr<ContextSlot>& slot, Context&) -> CUresult {
    if (id == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *id = slot->green_id;
    return CUDA_SUCCESS;
  });
}

CUresult cuGreenCtxStreamCreate(CUstream* out, CUgreenCtx handle, unsigned int flags, int priority) {
  return with_green(handle, [&](const std::shared_ptr<ContextSlot>& slot, Context&) -> CUresult {
    if (out == nullptr || flags != CU_STREAM_NON_BLOCKING) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    context_stack().push_back(slot);
    const CUresult result = cuStreamCreateWithPriority(out, flags, priority);
    context_stack().pop_back();
    return result;
  });
}

CUresult cuStreamGetGreenCtx(CUstream handle, CUgreenCtx* out) {
  return with_asked_stream(handle, out, [&](Context&, Stream& stream) -> CUresult {
    const auto slot = green_of(stream);
    *out = slot == nullptr ? nullptr : reinterpret_cast<CUgreenCtx>(slot->handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuGreenCtxRecordEvent(CUgreenCtx handle, CUevent event) {
  return with_green(handle, [&](const std::shared_ptr<ContextSlot>& slot, Context&) {
    return cuCtxRecordEvent(slot->handle, event);
  });
}

CUresult cuGreenCtxWaitEvent(CUgreenCtx handle, CUevent event) {
  return with_green(
      handle, [&](const std::shared_ptr<ContextSlot>& slot, Context&) { return cuCtxWaitEvent(slot->handle, event); });
}
