// Pools of memory in stream order: the client's part of the calls.
#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/memory/cached_memory.hpp"

namespace gpuwire::client::hand {
namespace {

bool reports_usage(CUmemPool_attribute attribute) {
  return attribute >= CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT && attribute <= CU_MEMPOOL_ATTR_USED_MEM_HIGH;
}

}  // namespace

CUresult cuMemPoolGetAttribute(const Caller& caller, CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  if (reports_usage(attribute)) caller.server->cached_memory.pools_are_watched();
  return forward::cuMemPoolGetAttribute(caller, pool, attribute, value);
}

CUresult cuMemPoolSetAttribute(const Caller& caller, CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  if (reports_usage(attribute)) caller.server->cached_memory.pools_are_watched();
  return forward::cuMemPoolSetAttribute(caller, pool, attribute, value);
}

CUresult cuDeviceSetMemPool(const Caller& caller, CUdevice device, CUmemoryPool pool) {
  caller.server->cached_memory.device_pool_changes();
  return forward::cuDeviceSetMemPool(caller, device, pool);
}

CUresult cuMemSetMemPool(const Caller& caller, CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  caller.server->cached_memory.device_pool_changes();
  return forward::cuMemSetMemPool(caller, location, type, pool);
}

CUresult cuMemPoolExportPointer(const Caller& caller, CUmemPoolPtrExportData* data, CUdeviceptr pointer) {
  address_map().update(pointer, [](AddressRange& range) { range.others_know = true; });
  return forward::cuMemPoolExportPointer(caller, data, pointer);
}

}  // namespace gpuwire::client::hand
