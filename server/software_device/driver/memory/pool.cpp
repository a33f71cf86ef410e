// Stream-ordered allocation and memory pools.
#include <algorithm>

#include "server/software_device/driver/stream/capture_rules.hpp"
#include "server/software_device/driver/memory/allocation.hpp"
#include "server/software_device/driver/call/api.hpp"
#include "server/software_device/driver/stream/capture.hpp"
#include "server/software_device/driver/call/refusal.hpp"

using namespace gpuwire::software_device;

namespace {

template <typename Body>
CUresult with_pool(CUmemoryPool handle, Body&& body, const char* function = __builtin_FUNCTION()) noexcept {
  return with_driver(
      [&]() -> CUresult {
        const auto pool = driver().pools.find(handle);
        return pool == nullptr ? CUDA_ERROR_INVALID_VALUE : body(pool);
      },
      function);
}

template <typename Body>
CUresult with_device(CUdevice ordinal, Body&& body) noexcept {
  return with_driver([&]() -> CUresult {
    Device* const device = driver().device(ordinal);
    return device == nullptr ? CUDA_ERROR_INVALID_DEVICE : body(*device);
  });
}

uint32_t devices_allowed(Pool& pool) {
  uint32_t mask = 1u << pool.device;
  const std::lock_guard lock(pool.mutex);
  for (const auto& [device, flags] : pool.access) {
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) {
      mask |= 1u << device;
    }
  }
  return mask;
}

// The address is valid at once: no other range uses the memory, so stream order holds from the start.
CUresult allocate(CUdeviceptr* out, size_t bytes, const std::shared_ptr<Pool>& pool, CUstream handle) {
  return with_own_stream(handle, [&](Context& context, Stream& stream) -> CUresult {
    if (out == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult refused = is_capturing(stream) ? CUDA_SUCCESS : permit_unsafe_call(); refused != CUDA_SUCCESS) {
      return refused;
    }
    if (bytes == 0) {  // not an error in stream order, unlike in cuMemAlloc (measured on driver 580)
      *out = 0;
      return CUDA_SUCCESS;
    }
    if (is_capturing(stream)) {
      auto allocation = allocate_for_graph(*driver().device(pool->device), context.handle(), bytes);
      if (!allocation) {
        return allocation.error();
      }
      *out = (*allocation)->address;
      return capture_work(context, stream, AllocateMemory{*std::move(allocation)});
    }
    if (pool->bytes_max != 0 &&
        bytes > pool->bytes_max - std::min(pool->bytes_max, pool->reserved.bytes.load(std::memory_order_relaxed))) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const uint32_t mask = devices_allowed(*pool);
    const auto address = allocate_range({.bytes = bytes,
                                         .kind = MemoryKind::device,
                                         .device = pool->device,
                                         .context = context.handle(),
                                         .pool = pool->handle,
                                         .readable_by = mask,
                                         .writable_by = mask},
                                        *driver().device(pool->device));
    if (!address) {
      return address.error();
    }
    pool->used.add(bytes);
    pool->reserved.add(bytes);
    *out = *address;
    return CUDA_SUCCESS;
  });
}

bool valid_setting(CUmemPool_attribute attribute) {
  return attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES && attribute <= CU_MEMPOOL_ATTR_USED_MEM_HIGH;
}

bool is_flag(CUmemPool_attribute attribute) { return attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES; }

uint64_t setting_of(Pool& pool, CUmemPool_attribute attribute) {
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: return pool.reserved.bytes.load(std::memory_order_relaxed);
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: return pool.reserved.high.load(std::memory_order_relaxed);
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: return pool.used.bytes.load(std::memory_order_relaxed);
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: return pool.used.high.load(std::memory_order_relaxed);
    default: break;
  }
  const std::lock_guard lock(pool.mutex);
  const auto found = pool.settings.find(attribute);
  return found != pool.settings.end() ? found->second : is_flag(attribute) ? 1 : 0;
}

}  // namespace

void Pool::Count::add(uint64_t more) noexcept {
  const uint64_t now = bytes.fetch_add(more, std::memory_order_relaxed) + more;
  uint64_t highest = high.load(std::memory_order_relaxed);
  while (now > highest && !high.compare_exchange_weak(highest, now, std::memory_order_relaxed)) {}
}

CUresult cuMemAllocAsync(CUdeviceptr* out, size_t bytes, CUstream stream) {
  return with_own_stream(stream, [&](Context& context, Stream&) {
    std::shared_ptr<Pool> pool;
    {
      const std::lock_guard lock(context.device().pool_mutex);
      pool = context.device().current_pool;
    }
    return allocate(out, bytes, pool, stream);
  });
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  const CUresult usable = with_stream(stream, [](Context&, Stream&) { return CUDA_SUCCESS; });
  // The NULL stream beside a capture is checked before the other arguments (measured on driver 580).
  if (usable == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
    return usable;
  }
  return with_context_or_none([&](Context* current) {
    return with_pool(pool, [&](const std::shared_ptr<Pool>& found) {
      if (current == nullptr) {
        return out == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
      }
      return allocate(out, bytes, found, stream);
    });
  });
}

// Memory outside of pools is reported even after a fault (measured on driver 580).
CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData* data, CUdeviceptr address) {
  return with_arguments_first(
      [&] {
        const auto range = driver().memory.find(address);
        return data != nullptr && range && range->pool != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
      },
      [](Context&) { return not_supported("cuMemPoolExportPointer"); });
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  return with_own_stream(handle, [&](Context& context, Stream& stream) -> CUresult {
    if (const CUresult refused = is_capturing(stream) ? permit_captured(stream) : permit_unsafe_call();
        refused != CUDA_SUCCESS) {
      return refused;
    }
    if (address == 0) {
      return CUDA_SUCCESS;
    }
    const auto range = driver().memory.find(address);
    if (!range || range->begin != address || range->kind != MemoryKind::device || range->variable) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (is_capturing(stream)) {
      return capture_work(context, stream, FreeMemory{address});
    }
    if (const auto allocation = find_graph_allocation(address)) {
      if (!note_freed(*allocation)) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      // The allocation lives until the work before this point is done.
      context.submit_always(stream, [allocation] {});
      return CUDA_SUCCESS;
    }
    if (range->leaving) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    driver().memory.update(address, [](MemoryRange& found) { found.leaving = true; });
    if (const auto pool = range->pool != nullptr ? driver().pools.find(range->pool) : nullptr) {
      pool->used.bytes.fetch_sub(range->bytes, std::memory_order_relaxed);
    }
    context.submit_always(stream, [address, buffer_id = range->buffer_id] {
      if (const auto removed = driver().memory.remove_buffer(address, buffer_id)) {
        leave_pool(*removed);
      }
    });
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolCreate(CUmemoryPool* out, const CUmemPoolProps* properties) {
  return with_driver([&]() -> CUresult {
    if (out == nullptr || properties == nullptr || properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
      return not_supported("a memory pool for other processes or in host memory");
    }
    if (driver().device(properties->location.id) == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;  // measured on driver 580
    }
    auto pool = std::make_shared<Pool>();
    pool->handle = driver().pools.reserve();
    pool->device = properties->location.id;
    pool->created = true;
    pool->bytes_max = properties->maxSize;
    driver().pools.insert(pool->handle, pool);
    *out = pool->handle;
    return CUDA_SUCCESS;
  });
}

// This device exports no pools, so no handle refers to one.
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* out, void*, CUmemAllocationHandleType type,
                                            unsigned long long) {
  return with_driver([&] {
    const bool knowable = type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || type == CU_MEM_HANDLE_TYPE_NONE;
    return out == nullptr || knowable ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
  });
}

CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  return with_pool(handle, [&](const std::shared_ptr<Pool>& pool) -> CUresult {
    if (!pool->created) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    Device& device = *driver().device(pool->device);
    const std::lock_guard lock(device.pool_mutex);
    if (device.current_pool == pool) {
      device.current_pool = device.default_pool;
    }
    driver().pools.take(handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* out, CUdevice ordinal) {
  return with_device(ordinal, [&](Device& device) -> CUresult {
    if (out == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *out = device.default_pool->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetMemPool(CUmemoryPool* out, CUdevice ordinal) {
  const CUresult result = with_device(ordinal, [&](Device& device) -> CUresult {
    if (out == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::lock_guard lock(device.pool_mutex);
    *out = device.current_pool->handle;
    return CUDA_SUCCESS;
  });
  return result == CUDA_ERROR_INVALID_DEVICE ? CUDA_ERROR_INVALID_VALUE : result;  // measured on driver 580
}

CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool handle) {
  return with_device(ordinal, [&](Device& device) -> CUresult {
    if (const CUresult refused = permit_unsafe_call(); refused != CUDA_SUCCESS) {
      return refused;
    }
    return with_pool(handle, [&](const std::shared_ptr<Pool>& pool) -> CUresult {
      if (pool->device != device.ordinal) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      const std::lock_guard lock(device.pool_mutex);
      device.current_pool = pool;
      return CUDA_SUCCESS;
    });
  });
}

// Freed memory is returned at once, so there is never anything to trim.
CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t) {
  return with_pool(handle, [](const std::shared_ptr<Pool>&) { return CUDA_SUCCESS; });
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  return with_pool(handle, [&](const std::shared_ptr<Pool>& pool) -> CUresult {
    if (value == nullptr || !valid_setting(attribute)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const uint64_t number = is_flag(attribute) ? static_cast<uint64_t>(*static_cast<const int*>(value))
                                               : *static_cast<const cuuint64_t*>(value);
    switch (attribute) {
      case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: return CUDA_ERROR_INVALID_VALUE;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      case CU_MEMPOOL_ATTR_USED_MEM_HIGH: {
        if (number != 0) {
          return CUDA_ERROR_INVALID_VALUE;
        }
        Pool::Count& count = attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH ? pool->used : pool->reserved;
        count.high.store(count.bytes.load(std::memory_order_relaxed), std::memory_order_relaxed);
        return CUDA_SUCCESS;
      }
      default: break;
    }
    const std::lock_guard lock(pool->mutex);
    pool->settings[attribute] = number;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  return with_pool(handle, [&](const std::shared_ptr<Pool>& pool) -> CUresult {
    if (value == nullptr || !valid_setting(attribute)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const uint64_t number = setting_of(*pool, attribute);
    if (is_flag(attribute)) {
      *static_cast<int*>(value) = static_cast<int>(number);
    } else {
      *static_cast<cuuint64_t*>(value) = number;
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* entries, size_t count) {
  return with_pool(handle, [&](const std::shared_ptr<Pool>& pool) -> CUresult {
    if (entries == nullptr && count != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; ++i) {
      if (entries[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
          driver().device(entries[i].location.id) == nullptr) {
        return CUDA_ERROR_INVALID_DEVICE;
      }
      const std::lock_guard lock(pool->mutex);
      pool->access[entries[i].location.id] = entries[i].flags;
    }
    const uint32_t mask = devices_allowed(*pool);
    for (const uint64_t begin :
         driver().memory.select([&](const MemoryRange& range) { return range.pool == handle; })) {
      driver().memory.update(begin, [&](MemoryRange& range) { range.readable_by = range.writable_by = mask; });
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle, CUmemLocation* location) {
  return with_pool(handle, [&](const std::shared_ptr<Pool>& pool) -> CUresult {
    if (flags == nullptr || location == nullptr || location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (driver().device(location->id) == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;  // measured on driver 580
    }
    *flags = (devices_allowed(*pool) >> location->id & 1) != 0 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                               : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
  });
}
