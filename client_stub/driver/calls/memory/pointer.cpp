// Pointer attributes. The client answers the queries; only the handle of a device's default pool comes from the server.
#include <cstring>

#include "client/custom.hpp"
#include "client/forward.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/memory/pointer_attributes.hpp"
#include "protocol/wire/limits.hpp"

namespace gpuwire::client::hand {
namespace {

// Stores the device's default pool in a range of a pool that the program has not named.
void name_pool(const Caller& caller, AddressRange& range) {
  if (range.kind != RangeKind::pool || range.owner != 0 || range.device < 0) return;
  CUmemoryPool pool = nullptr;
  if (forward::cuDeviceGetDefaultMemPool(caller, &pool, range.device) == CUDA_SUCCESS)
    range.owner = reinterpret_cast<uint64_t>(pool);
}

// Sets the attribute of the range. Returns false if the memory no longer exists.
bool set_sync_memops(const AddressRange& range, CUdeviceptr ptr, bool on) {
  auto set = [&](AddressRange& found) { found.sync_memops = on; };
  if (range.kind == RangeKind::mapped) mapped_parts().update(ptr, set);
  return address_map().update(ptr, set);
}

}  // namespace

CUresult cuPointerGetAttribute(const Caller& caller, void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  if (!data) return CUDA_ERROR_INVALID_VALUE;
  auto range = allocation_at(ptr);
  if (!range) return CUDA_ERROR_INVALID_VALUE;
  if (attribute == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) name_pool(caller, *range);
  const CUresult result = pointer_attribute(attribute, ptr, *range, data);
  // The driver sets SYNC_MEMOPS, too, because the tokens are for devices that read the memory (as measured on driver
  // 580).
  if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS && result == CUDA_SUCCESS) set_sync_memops(*range, ptr, true);
  return result;
}

CUresult cuPointerGetAttributes(const Caller& caller, unsigned int numAttributes, CUpointer_attribute* attributes,
                                void** data, CUdeviceptr ptr) {
  if (numAttributes == 0 || !attributes || !data) return CUDA_ERROR_INVALID_VALUE;
  auto range = allocation_at(ptr);
  for (unsigned i = 0; i < numAttributes; ++i) {
    if (attributes[i] == CU_POINTER_ATTRIBUTE_P2P_TOKENS || attributes[i] < CU_POINTER_ATTRIBUTE_CONTEXT ||
        attributes[i] > CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE || !data[i]) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (!range) {
      unknown_pointer_attribute(attributes[i], ptr, data[i]);
      continue;
    }
    if (attributes[i] == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) name_pool(caller, *range);
    pointer_attribute(attributes[i], ptr, *range, data[i]);
  }
  return CUDA_SUCCESS;
}

// SYNC_MEMOPS is the only attribute that can be set. It has no further effect, because copies without a stream argument
// are always complete when they return.
CUresult cuPointerSetAttribute(const Caller&, const void* value, CUpointer_attribute attribute, CUdeviceptr ptr) {
  if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
  auto range = allocation_at(ptr);
  if (!range || is_host(range->kind)) return CUDA_ERROR_INVALID_VALUE;
  uint32_t on = 0;
  std::memcpy(&on, value, sizeof on);
  return set_sync_memops(*range, ptr, on != 0) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace gpuwire::client::hand
