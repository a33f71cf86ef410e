// Pools of stream-ordered memory: the client's part of the calls about them.
#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/memory/cached_memory.hpp"

namespace gpuwire::client::custom {
namespace {

bool reports_usage(CUmemPool_attribute attribute) {
  return attribute >= CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT && attribute <= CU_MEMPOOL_ATTR_USED_MEM_HIGH;
}

}  // namespace

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  Caller caller = enter(Needs::initialised);
  if (caller.error) return caller.error;
  if (reports_usage(attribute)) caller.server->cached_memory.pools_are_watched();
  return leave(caller, forward::cuMemPoolGetAttribute(caller, pool, attribute, value));
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  Caller caller = enter(Needs::initialised);
  if (caller.error) return caller.error;
  if (reports_usage(attribute)) caller.server->cached_memory.pools_are_watched();
  return leave(caller, forward::cuMemPoolSetAttribute(caller, pool, attribute, value));
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  Caller caller = enter(Needs::initialised);
  if (caller.error) return caller.error;
  caller.server->cached_memory.device_pool_changes();
  return leave(caller, forward::cuDeviceSetMemPool(caller, device, pool));
}

CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  Caller caller = enter(Needs::initialised);
  if (caller.error) return caller.error;
  caller.server->cached_memory.device_pool_changes();
  return leave(caller, forward::cuMemSetMemPool(caller, location, type, pool));
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData* data, CUdeviceptr pointer) {
  Caller caller = enter(Needs::living_context);
  if (caller.error) return caller.error;
  address_map().update(pointer, [](AddressRange& range) { range.others_know = true; });
  return leave(caller, forward::cuMemPoolExportPointer(caller, data, pointer));
}

}  // namespace gpuwire::client::custom
