#include "client_stub/driver/memory/pointer_attributes.hpp"

#include <cstring>

namespace gpuwire::client {
namespace {

template <class Value>
CUresult store(void* data, Value value, bool known) {
  std::memcpy(data, &value, sizeof value);
  return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// A mapping's range is the whole reservation that contains it (measured on driver 580).
AddressRange whole_of(const AddressRange& range) {
  if (range.kind != RangeKind::mapped) return range;
  return address_map().find(range.base).value_or(range);
}

uint32_t access_flags(const AddressRange& range) {
  if (range.writable_by != 0) return CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
  return range.is_accessible() ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
}

}  // namespace

CUresult pointer_attribute(CUpointer_attribute attribute, CUdeviceptr pointer, const std::optional<AddressRange>& range,
                           void* data) {
  const bool known = range.has_value();
  const bool host = known && is_host(range->kind);
  const bool accessible = known && range->is_accessible();
  const bool managed = known && is_managed(range->kind);
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: return store<uint64_t>(data, known ? range->context : 0, known);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return store<uint32_t>(data, !known ? 0 : host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE, known);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      // Pinned memory has its own address on the device, too. A mapping that no device may access has none (measured on
      // driver 580).
      return store<uint64_t>(data, accessible ? pointer : 0, accessible);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      // Ordinary host memory is its own host pointer (measured on driver 580).
      return store<uint64_t>(data, !known || host || managed ? pointer : 0, host || managed);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      // Of managed memory always, of pinned memory never (measured on driver 580).
      return store<uint32_t>(data, managed || (known && range->sync_memops), known);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return store<uint64_t>(data, known ? range->buffer_id : 0, known);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return store<uint32_t>(data, managed, known);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return store<int32_t>(data, known ? range->device : CU_DEVICE_INVALID, known);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return store<uint32_t>(data, known && range->kind == RangeKind::device, known);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return store<uint64_t>(data, known ? whole_of(*range).base : 0, known);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return store<uint64_t>(data, known ? whole_of(*range).bytes : 0, known);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: return store<uint64_t>(data, known ? range->base : 0, known);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: return store<uint64_t>(data, known ? range->bytes : 0, known);
    case CU_POINTER_ATTRIBUTE_MAPPED: return store<uint32_t>(data, known, known);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: return store<uint32_t>(data, CU_MEM_HANDLE_TYPE_NONE, known);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: return store<uint32_t>(data, 0, known);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return store<uint32_t>(data, known && !host ? access_flags(*range) : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE,
                             known);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return store<uint64_t>(data, known && range->kind == RangeKind::pool ? range->owner : 0, known);
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: return store<uint64_t>(data, known ? range->buffer_id : 0, known);
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS: return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

}  // namespace gpuwire::client
