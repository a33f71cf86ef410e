// Allocation: device, host and managed memory, ranges and their sizes.
#include <algorithm>

#include "server/software_device/driver/memory/allocation.hpp"
#include "server/software_device/driver/call/api.hpp"
#include "server/software_device/driver/graph/graph_memory.hpp"
#include "server/software_device/driver/call/refusal.hpp"

using namespace gpuwire::software_device;

namespace {

constexpr unsigned kHostAllocFlags =
    CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
constexpr unsigned kHostRegisterFlags =
    CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;
constexpr size_t kPitchAlignment = 512;

uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

// Waits for work that may still use the freed memory: the work of the current context and of the context of its
// allocation.
CUresult settle(Context& current, const MemoryRange& range) {
  const CUresult result = current.synchronize();
  const auto slot = range.context == current.handle() ? nullptr : driver().contexts.find(range.context);
  if (const auto owner = slot == nullptr ? nullptr : slot->live()) {
    owner->synchronize();  // the owner's fault is not the caller's
  }
  return result;
}

CUresult allocate_device(CUdeviceptr* out, size_t bytes) {
  return with_context([&](Context& context) -> CUresult {
    if (const CUresult result = permit_unsafe_call(); result != CUDA_SUCCESS) {
      return result;
    }
    if (out == nullptr || bytes == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    Device& device = context.device();
    const uint32_t mine = 1u << device.ordinal;
    const auto address = allocate_range({.bytes = bytes,
                                         .kind = MemoryKind::device,
                                         .device = device.ordinal,
                                         .context = context.handle(),
                                         .readable_by = mine,
                                         .writable_by = mine},
                                        device);
    if (!address) {
      return address.error();
    }
    *out = *address;
    return CUDA_SUCCESS;
  });
}

CUresult allocate_host(void** out, size_t bytes, unsigned flags) {
  return with_context([&](Context& context) -> CUresult {
    if (const CUresult result = permit_unsafe_call(); result != CUDA_SUCCESS) {
      return result;
    }
    if (out == nullptr || (flags & ~kHostAllocFlags) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (bytes == 0) {  // not an error (measured on driver 580)
      *out = nullptr;
      return CUDA_SUCCESS;
    }
    const auto address = allocate_range({.bytes = bytes,
                                         .kind = MemoryKind::pinned,
                                         .device = context.device().ordinal,
                                         .context = context.handle(),
                                         .flags = flags | CU_MEMHOSTALLOC_DEVICEMAP},
                                        context.device());
    if (!address) {
      return address.error();
    }
    *out = reinterpret_cast<void*>(*address);
    return CUDA_SUCCESS;
  });
}

}  // namespace

CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) { return allocate_device(out, bytes); }

CUresult cuMemAllocPitch_v2(CUdeviceptr* out, size_t* pitch, size_t width_bytes, size_t height,
                            unsigned int element_bytes) {
  return with_context([&](Context&) -> CUresult {
    if (out == nullptr || pitch == nullptr || width_bytes == 0 || height == 0 ||
        (element_bytes != 4 && element_bytes != 8 && element_bytes != 16)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const size_t row = (width_bytes + kPitchAlignment - 1) / kPitchAlignment * kPitchAlignment;
    size_t bytes = 0;
    if (row < width_bytes || __builtin_mul_overflow(row, height, &bytes)) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const CUresult result = allocate_device(out, bytes);
    if (result == CUDA_SUCCESS) {
      *pitch = row;
    }
    return result;
  });
}

// Waits for work that may still use the memory, like NVIDIA's driver.
CUresult cuMemFree_v2(CUdeviceptr address) {
  return with_context([&](Context& context) -> CUresult {
    if (address == 0) {
      return CUDA_SUCCESS;
    }
    const auto range = driver().memory.find(address);
    const auto freeable = [](const MemoryRange& found) {
      return (found.kind == MemoryKind::device || found.kind == MemoryKind::managed) && !found.variable;
    };
    if (!range || range->begin != address || !freeable(*range)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const CUresult result = settle(context, *range);
    // The graph keeps the address for its next launch.
    if (const auto allocation = find_graph_allocation(address)) {
      return result != CUDA_SUCCESS ? result : note_freed(*allocation) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    if (const auto removed = driver().memory.remove(address, freeable)) {
      leave_pool(*removed);
    }
    return result;
  });
}

CUresult cuMemAllocManaged(CUdeviceptr* out, size_t bytes, unsigned int flags) {
  // Checked before a fault.
  const auto wrong = [&] { return out == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; };
  return with_arguments_first(wrong, [&](Context& context) -> CUresult {
    if (bytes == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult result = permit_unsafe_call(); result != CUDA_SUCCESS) {
      return result;
    }
    const auto address = allocate_range({.bytes = bytes,
                                         .kind = MemoryKind::managed,
                                         .device = context.device().ordinal,
                                         .context = context.handle(),
                                         .flags = flags},
                                        context.device());
    if (!address) {
      return address.error();
    }
    *out = *address;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostAlloc(void** out, size_t bytes, unsigned int flags) { return allocate_host(out, bytes, flags); }
CUresult cuMemAllocHost_v2(void** out, size_t bytes) { return allocate_host(out, bytes, 0); }

CUresult cuMemFreeHost(void* pointer) {
  return with_context([&](Context& context) -> CUresult {
    if (pointer == nullptr) {
      return CUDA_SUCCESS;
    }
    const auto range = driver().memory.find(address_of(pointer));
    if (!range || range->begin != address_of(pointer) || range->kind != MemoryKind::pinned) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const CUresult result = settle(context, *range);
    driver().memory.remove(range->begin, [](const MemoryRange& found) { return found.kind == MemoryKind::pinned; });
    return result;
  });
}

CUresult cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned int flags) {
  return with_context([&](Context& context) -> CUresult {
    if ((flags & CU_MEMHOSTREGISTER_IOMEMORY) != 0) {
      return not_supported("registering memory of a device (CU_MEMHOSTREGISTER_IOMEMORY)");
    }
    if (pointer == nullptr || bytes == 0 || (flags & ~kHostRegisterFlags) != 0 || address_of(pointer) + bytes < bytes) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const uint64_t inserted =
        driver().memory.insert({.begin = address_of(pointer),
                                .bytes = bytes,
                                .kind = MemoryKind::registered,
                                .device = context.device().ordinal,
                                .context = context.handle(),
                                .flags = flags,
                                .writable_by = (flags & CU_MEMHOSTREGISTER_READ_ONLY) != 0 ? 0 : ~0u});
    return inserted != 0 ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  });
}

// The first version ignores unknown flags (measured on driver 580).
CUresult cuMemHostRegister(void* pointer, size_t bytes, unsigned int flags) {
  return cuMemHostRegister_v2(pointer, bytes, flags & (kHostRegisterFlags | CU_MEMHOSTREGISTER_IOMEMORY));
}

CUresult cuMemHostUnregister(void* pointer) {
  return with_context([&](Context& context) -> CUresult {
    const auto range = driver().memory.find(address_of(pointer));
    const bool registered = range && range->kind == MemoryKind::registered;
    if (!registered || range->begin != address_of(pointer)) {
      return registered || pointer == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
    const CUresult result = settle(context, *range);
    driver().memory.remove(range->begin, [](const MemoryRange& found) { return found.kind == MemoryKind::registered; });
    return result;
  });
}

// Host memory has the same address on host and device.
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* pointer, unsigned int flags) {
  return with_context([&](Context&) -> CUresult {
    const auto range = driver().memory.find(address_of(pointer));
    if (out == nullptr || flags != 0 || !range ||
        (range->kind != MemoryKind::pinned && range->kind != MemoryKind::registered)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *out = address_of(pointer);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostGetFlags(unsigned int* flags, void* pointer) {
  const auto nowhere = [&] { return flags == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; };
  return with_arguments_first(nowhere, [&](Context&) -> CUresult {
    const auto range = driver().memory.find(address_of(pointer));
    if (!range || (range->kind != MemoryKind::pinned && range->kind != MemoryKind::registered)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = (range->flags & kHostAllocFlags) | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
  });
}

// Memory of other processes is not supported, but a fault is reported first.
CUresult cuIpcCloseMemHandle(CUdeviceptr) { return not_offered_in_a_context(); }

CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  return with_context([&](Context& context) -> CUresult {
    const Device& device = context.device();
    if (free_bytes != nullptr) {
      *free_bytes =
          device.total_bytes - std::min(device.total_bytes, device.used_bytes.load(std::memory_order_relaxed));
    }
    if (total_bytes != nullptr) {
      *total_bytes = device.total_bytes;
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* begin, size_t* bytes, CUdeviceptr address) {
  if (begin == nullptr && bytes == nullptr) {
    return with_driver([] { return CUDA_SUCCESS; });  // succeeds even after a fault
  }
  return with_context_of(address, [&](Context&) -> CUresult {
    const auto range = driver().memory.find(address);
    // A mapping without access is not found (measured on driver 580).
    if (!range || range->kind == MemoryKind::heap || range->readable_by == 0) {
      return CUDA_ERROR_NOT_FOUND;
    }
    if (begin != nullptr) {
      *begin = range->begin;
    }
    if (bytes != nullptr) {
      *bytes = range->bytes;
    }
    return CUDA_SUCCESS;
  });
}
