// Handles of physical memory: the calls.
#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/memory/allocation_handle.hpp"
#include "client_stub/driver/state/memory/shares.hpp"
#include "client_stub/driver/state/session/server_session.hpp"

namespace gpuwire::client {
namespace hand {

CUresult cuMemCreate(const Caller& caller, CUmemGenericAllocationHandle* handle, size_t size,
                     const CUmemAllocationProp* prop, unsigned long long flags) {
  if (!handle || !prop) return CUDA_ERROR_INVALID_VALUE;
  caller.server->shares.sweep(caller);
  CUresult result = forward::cuMemCreate(caller, handle, size, prop, flags);
  const bool on_device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  if (!result && on_device) caller.server->allocation_holders.hold(*handle, prop->location.id);
  else if (!result) caller.server->allocation_holders.hold(*handle);
  return result;
}

CUresult cuMemRetainAllocationHandle(const Caller& caller, CUmemGenericAllocationHandle* handle, void* addr) {
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = forward::cuMemRetainAllocationHandle(caller, handle, addr);
  if (!result) caller.server->allocation_holders.hold(*handle);
  return result;
}

CUresult cuMemRelease(const Caller& caller, CUmemGenericAllocationHandle handle) {
  if (!known_handle(wire::HandleKind::memory_allocation, handle)) return CUDA_ERROR_INVALID_VALUE;
  CUresult result =
      caller.server->allocation_holders.release(handle) ? forward::cuMemRelease(caller, handle) : CUDA_SUCCESS;
  caller.server->shares.sweep(caller);
  return result;
}

}  // namespace hand
}  // namespace gpuwire::client
