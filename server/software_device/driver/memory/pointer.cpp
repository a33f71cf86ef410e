// The attributes of a pointer.
#include <cstring>
#include <type_traits>

#include "server/software_device/driver/call/api.hpp"

using namespace gpuwire::software_device;

namespace {

bool in_host_memory(const MemoryRange& range) {
  return range.kind == MemoryKind::pinned || range.kind == MemoryKind::registered;
}

CUmemorytype type_of(const MemoryRange& range) {
  return in_host_memory(range) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
}

bool host_accessible(const MemoryRange& range) { return in_host_memory(range) || range.kind == MemoryKind::managed; }

template <typename T>
CUresult give(void* out, const T& value) {
  static_assert(!std::is_same_v<T, bool>, "use give_flag");
  std::memcpy(out, &value, sizeof value);
  return CUDA_SUCCESS;
}

// Booleans have four bytes here, because cudart reads a complete word.
CUresult give_flag(void* out, bool value) { return give(out, value ? 1u : 0u); }

// Returns the reported range. For a mapping, this is the reservation that contains it (measured on driver 580).
AddressReservations::Range whole_of(const MemoryRange& range) {
  const AddressReservations::Range own{range.begin, range.bytes};
  return range.kind == MemoryKind::mapped ? driver().reservations.find(range.begin).value_or(own) : own;
}

// Writes the value of an attribute that such memory does not have, and returns the error (measured on driver 580).
CUresult give_nothing(void* out) {
  give(out, uint64_t{0});
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult give_tokens(void* out, const MemoryRange& range) {
  std::memset(out, 0, sizeof(uint64_t) + sizeof(uint32_t));  // without the padding behind the two tokens
  return in_host_memory(range) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult attribute_of(void* out, CUpointer_attribute attribute, CUdeviceptr address, const MemoryRange& range) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: return give(out, range.in_pool() ? nullptr : range.context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: return give(out, type_of(range));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      // A mapping that no device may access has no device pointer (measured on driver 580).
      return range.readable_by != 0 ? give(out, address) : give_nothing(out);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: return host_accessible(range) ? give(out, address) : give_nothing(out);
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS: return give_tokens(out, range);
    // True for managed memory, false for host memory, and for other memory true if the program has set it or queried
    // the tokens (measured on driver 580).
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return give_flag(out, range.kind == MemoryKind::managed || range.sync_memops);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return give(out, static_cast<unsigned long long>(range.buffer_id));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return give_flag(out, range.kind == MemoryKind::managed);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return give(out, range.device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return give_flag(out, range.kind == MemoryKind::device && !range.in_pool() && !range.variable);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return give(out, static_cast<CUdeviceptr>(whole_of(range).begin));
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return give(out, static_cast<size_t>(whole_of(range).bytes));
    case CU_POINTER_ATTRIBUTE_MAPPED: return give_flag(out, true);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: return give(out, uint32_t{0});
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: return give_flag(out, false);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return give(out, range.writable_by != 0   ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE
                       : range.readable_by != 0 ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ
                                                : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return give(out, range.pool);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: return give(out, static_cast<size_t>(range.bytes));
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: return give(out, static_cast<CUdeviceptr>(range.begin));
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: return give(out, static_cast<uint64_t>(range.buffer_id));
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

// Writes the result of cuPointerGetAttributes for memory that the driver does not know: zero, except that a host
// pointer is the address itself, and that a reserved range without memory has its range, which is not written for other
// memory (measured on driver 580).
void unknown_attribute(void* out, CUpointer_attribute attribute, CUdeviceptr address) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: give(out, address); break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      if (const auto range = driver().reservations.find(address)) {
        give(out, static_cast<CUdeviceptr>(range->begin));
      }
      break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      if (const auto range = driver().reservations.find(address)) {
        give(out, static_cast<size_t>(range->bytes));
      }
      break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: give(out, CUmemorytype{}); break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: give(out, -2); break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: give_flag(out, false); break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: give(out, 0); break;
    default: give(out, uint64_t{0}); break;
  }
}

// Synchronous copies are always synchronous here, so the flag is only reported.
void set_sync_memops(const MemoryRange& range, bool on) {
  if (!in_host_memory(range)) {
    driver().memory.update(range.begin, [&](MemoryRange& found) { found.sync_memops = on; });
  }
}

bool known_attribute(CUpointer_attribute attribute) {
  return attribute >= CU_POINTER_ATTRIBUTE_CONTEXT && attribute <= CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE &&
         attribute != CU_POINTER_ATTRIBUTE_P2P_TOKENS;
}

std::optional<MemoryRange> range_of(CUdeviceptr address) {
  auto range = driver().memory.find(address);
  return range && range->kind == MemoryKind::heap ? std::nullopt : range;
}

}  // namespace

CUresult cuPointerGetAttribute(void* out, CUpointer_attribute attribute, CUdeviceptr address) {
  return with_driver([&]() -> CUresult {
    const auto range = range_of(address);
    if (out == nullptr || !range) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const CUresult result = attribute_of(out, attribute, address, *range);
    if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS && result == CUDA_SUCCESS) {
      set_sync_memops(*range, true);
    }
    return result;
  });
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** values,
                                CUdeviceptr address) {
  return with_driver([&]() -> CUresult {
    if (count == 0 || attributes == nullptr || values == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const auto range = range_of(address);
    for (unsigned i = 0; i < count; ++i) {
      if (!known_attribute(attributes[i]) || values[i] == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      // An attribute that this kind of memory does not have is zero here, and not an error.
      if (range) {
        attribute_of(values[i], attributes[i], address, *range);
      } else {
        unknown_attribute(values[i], attributes[i], address);
      }
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  return with_any_context([&](Context&) -> CUresult {
    const auto range = range_of(address);
    if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !range) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    uint32_t on = 0;
    std::memcpy(&on, value, sizeof on);
    set_sync_memops(*range, on != 0);
    return CUDA_SUCCESS;
  });
}
