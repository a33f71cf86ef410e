// The functions by which the layer of evictable memory replaces those of the driver's table.
#include <utility>

#include "server/driver/evictable/evictable_memory.hpp"

namespace gpuwire::server {
namespace {

EvictableMemory* the_layer = nullptr;  // set before the first call of a function, cleared after the last

template <class Function>
void wrap(Function& place, Function wrapper) {
  if (place) place = wrapper;
}

CUresult refused_if(bool refused, CUresult reason, auto&& call) { return refused ? reason : call(); }

void wrap_allocations(DriverTable& table) {
  wrap(
      table.cuMemAlloc_v2, +[](CUdeviceptr* address, size_t bytes) { return the_layer->allocate(address, bytes); });
  wrap(
      table.cuMemFree_v2, +[](CUdeviceptr address) { return the_layer->free(address); });
  wrap(
      table.cuMemFreeAsync,
      +[](CUdeviceptr address, CUstream stream) { return the_layer->free_async(address, stream); });
  wrap(
      table.cuMemGetInfo_v2, +[](size_t* free, size_t* total) { return the_layer->memory_info(free, total); });
  wrap(
      table.cuMemGetAddressRange_v2, +[](CUdeviceptr* begin, size_t* bytes, CUdeviceptr address) {
        return the_layer->address_range(begin, bytes, address);
      });
  wrap(
      table.cuPointerGetAttribute, +[](void* out, CUpointer_attribute attribute, CUdeviceptr address) {
        return the_layer->attribute(out, attribute, address);
      });
  wrap(
      table.cuPointerGetAttributes,
      +[](unsigned count, CUpointer_attribute* attributes, void** out, CUdeviceptr address) {
        return the_layer->attributes(count, attributes, out, address);
      });
  wrap(
      table.cuPointerSetAttribute, +[](const void* value, CUpointer_attribute attribute, CUdeviceptr address) {
        return the_layer->set_attribute(value, attribute, address);
      });
  // The driver makes no handles for legacy IPC of memory of cuMemCreate, and the memory cannot be exchanged for other
  // memory at the same address.
  wrap(
      table.cuIpcGetMemHandle, +[](CUipcMemHandle* handle, CUdeviceptr address) {
        return refused_if(the_layer->touches(address, 1), CUDA_ERROR_NOT_SUPPORTED,
                          [&] { return the_layer->driver().cuIpcGetMemHandle(handle, address); });
      });
}

// A program manages memory of its own cuMemCreate with these, and memory of cuMemAlloc is an invalid argument.
void wrap_virtual_memory(DriverTable& table) {
  constexpr CUresult kInvalid = CUDA_ERROR_INVALID_VALUE;
  wrap(
      table.cuMemAddressFree, +[](CUdeviceptr address, size_t bytes) {
        return refused_if(the_layer->touches(address, bytes), kInvalid,
                          [&] { return the_layer->driver().cuMemAddressFree(address, bytes); });
      });
  wrap(
      table.cuMemMap, +[](CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags) {
        return refused_if(the_layer->touches(address, bytes), kInvalid,
                          [&] { return the_layer->driver().cuMemMap(address, bytes, offset, handle, flags); });
      });
  wrap(
      table.cuMemUnmap, +[](CUdeviceptr address, size_t bytes) {
        return refused_if(the_layer->touches(address, bytes), kInvalid,
                          [&] { return the_layer->driver().cuMemUnmap(address, bytes); });
      });
  wrap(
      table.cuMemSetAccess, +[](CUdeviceptr address, size_t bytes, const CUmemAccessDesc* entries, size_t count) {
        return refused_if(the_layer->touches(address, bytes), kInvalid,
                          [&] { return the_layer->driver().cuMemSetAccess(address, bytes, entries, count); });
      });
  wrap(
      table.cuMemGetAccess, +[](unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
        return refused_if(the_layer->touches(address, 1), kInvalid,
                          [&] { return the_layer->driver().cuMemGetAccess(flags, location, address); });
      });
  wrap(
      table.cuMemRetainAllocationHandle, +[](CUmemGenericAllocationHandle* handle, void* address) {
        return refused_if(the_layer->touches(CUdeviceptr(address), 1), kInvalid,
                          [&] { return the_layer->driver().cuMemRetainAllocationHandle(handle, address); });
      });
  wrap(
      table.cuMulticastBindAddr, +[](CUmemGenericAllocationHandle multicast, size_t offset, CUdeviceptr address,
                                     size_t bytes, unsigned long long flags) {
        return refused_if(the_layer->touches(address, bytes), kInvalid, [&] {
          return the_layer->driver().cuMulticastBindAddr(multicast, offset, address, bytes, flags);
        });
      });
}

void wrap_contexts(DriverTable& table) {
  wrap(
      table.cuDevicePrimaryCtxRetain,
      +[](CUcontext* context, CUdevice device) { return the_layer->retain_primary(context, device); });
  wrap(
      table.cuDevicePrimaryCtxRelease_v2, +[](CUdevice device) {
        return the_layer->primaries_released(the_layer->driver().cuDevicePrimaryCtxRelease_v2(device));
      });
  wrap(
      table.cuDevicePrimaryCtxReset_v2, +[](CUdevice device) {
        return the_layer->primaries_released(the_layer->driver().cuDevicePrimaryCtxReset_v2(device));
      });
  wrap(
      table.cuCtxDestroy_v2, +[](CUcontext context) { return the_layer->destroy_context(context); });
  wrap(
      table.cuCtxFromGreenCtx,
      +[](CUcontext* context, CUgreenCtx green) { return the_layer->context_of_green(context, green); });
  wrap(
      table.cuGreenCtxDestroy, +[](CUgreenCtx green) { return the_layer->destroy_green(green); });
  wrap(
      table.cuCtxEnablePeerAccess, +[](CUcontext peer, unsigned flags) { return the_layer->enable_peer(peer, flags); });
  wrap(
      table.cuCtxDisablePeerAccess, +[](CUcontext peer) { return the_layer->disable_peer(peer); });
}

}  // namespace

void EvictableMemory::put_before(DriverTable& table) {
  the_layer = this;
  wrap_allocations(table);
  wrap_virtual_memory(table);
  wrap_contexts(table);
}

EvictableMemory::~EvictableMemory() {
  if (the_layer == this) the_layer = nullptr;
  MutexLock lock(mutex_);
  for (auto& [begin, block] : blocks_) release(block);
  for (Waiting& one : waiting_) release(one.block);
}

}  // namespace gpuwire::server
