#include "client_stub/driver/state/memory/pointer_attributes.hpp"

#include <cstring>

namespace gpuwire::client {
namespace {

// `known`: the memory has this attribute.
template <class Value>
CUresult store(void* data, Value value, bool known = true) {
  std::memcpy(data, &value, sizeof value);
  return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

std::optional<AddressRange> reservation_at(uint64_t address) {
  auto range = address_map().find(address);
  return range && range->kind == RangeKind::mapped ? range : std::nullopt;
}

// A mapping's range is the whole reservation that contains it (measured on driver 580).
AddressRange whole_of(const AddressRange& range) {
  return range.kind == RangeKind::mapped ? reservation_at(range.base).value_or(range) : range;
}

uint32_t access_flags(const AddressRange& range) {
  if (range.writable_by != 0) return CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
  return range.is_accessible() ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
}

// As the driver does since CUDA 6, the client returns no tokens; GPUDirect RDMA needs none.
CUresult store_tokens(void* data, bool host) {
  uint32_t zeros[3] = {};
  std::memcpy(data, zeros, sizeof zeros);
  return host ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

}  // namespace

CUresult pointer_attribute(CUpointer_attribute attribute, CUdeviceptr pointer, const AddressRange& range, void* data) {
  const bool host = is_host(range.kind);
  const bool managed = is_managed(range.kind);
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: return store<uint64_t>(data, range.own_context());
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return store<uint32_t>(data, host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      // Pinned memory has its own address on the device. A mapping that no device may access has no address (measured
      // on driver 580).
      return store<uint64_t>(data, range.is_accessible() ? pointer : 0, range.is_accessible());
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return store<uint64_t>(data, host || managed ? pointer : 0, host || managed);
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS: return store_tokens(data, host);
    // Managed memory always has it, pinned memory never; other memory has it if the program has set it or requested
    // tokens (measured on driver 580).
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: return store<uint32_t>(data, managed || range.sync_memops);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return store<uint64_t>(data, range.buffer_id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return store<uint32_t>(data, managed);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return store<int32_t>(data, range.device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: return store<uint32_t>(data, range.kind == RangeKind::device);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return store<uint64_t>(data, whole_of(range).base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return store<uint64_t>(data, whole_of(range).bytes);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: return store<uint64_t>(data, range.base);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: return store<uint64_t>(data, range.bytes);
    case CU_POINTER_ATTRIBUTE_MAPPED: return store<uint32_t>(data, 1);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: return store<uint32_t>(data, CU_MEM_HANDLE_TYPE_NONE);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: return store<uint32_t>(data, 0);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: return store<uint32_t>(data, access_flags(range));
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return store<uint64_t>(data, range.kind == RangeKind::pool ? range.owner : 0);
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: return store<uint64_t>(data, range.buffer_id);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

void unknown_pointer_attribute(CUpointer_attribute attribute, CUdeviceptr pointer, void* data) {
  switch (attribute) {
    // Ordinary host memory is its own host pointer (measured on driver 580).
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: store<uint64_t>(data, pointer); return;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: store<int32_t>(data, CU_DEVICE_INVALID); return;
    // Only a reserved range has these two; for other memory nothing is stored (measured on driver 580).
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      if (auto range = reservation_at(pointer)) store<uint64_t>(data, range->base);
      return;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      if (auto range = reservation_at(pointer)) store<uint64_t>(data, range->bytes);
      return;
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: store<uint64_t>(data, 0); return;
    default: store<uint32_t>(data, 0); return;
  }
}

}  // namespace gpuwire::client
