// Managed memory: the calls. state/managed_memory implements the memory's behaviour.
#include <algorithm>
#include <optional>
#include <vector>

#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client_stub/driver/process/log_stderr.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/managed_memory/managed_allocations.hpp"
#include "client_stub/driver/state/managed_memory/managed_memory.hpp"
#include "client_stub/driver/state/memory/address_map.hpp"
#include "client_stub/driver/process/process.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/stream/capture.hpp"
#include "client_stub/driver/state/stream/stream_call.hpp"

namespace gpuwire::client {
namespace {

constexpr size_t kManagedRetriesMax = 16;

// Returns whether managed memory is offered. The server must be able to access the memory while kernels run, which
// depends on the device.
bool offered(const Caller& caller) {
  const DeviceFacts& facts = *process()->devices[size_t(caller.state->device)].facts;
  return caller.session->facts().knows(uint32_t(wire::SessionOrdinal::managed_write)) &&
         facts.attributes.size() > CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS &&
         facts.attributes[CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS] != 0;
}

// Allocates memory at the server whose addresses are free in this process, and maps it. Memory at unusable addresses is
// freed only at the end, so that the server does not return it again.
CUresult allocate_mapped(const Caller& caller, uint64_t bytes, unsigned flags, CUdeviceptr& out) {
  std::vector<CUdeviceptr> unusable;
  CUresult result;
  CUdeviceptr address = 0;
  while ((result = forward::cuMemAllocManaged(caller, &address, bytes, flags)) == CUDA_SUCCESS) {
    auto mapped = caller.server->managed_memory.map(address, bytes, true);
    if (mapped == ManagedMemory::Mapped::yes) break;
    unusable.push_back(address);
    result = CUDA_ERROR_OUT_OF_MEMORY;
    if (mapped == ManagedMemory::Mapped::no_memory) break;
    if (unusable.size() < kManagedRetriesMax) continue;
    log_stderr("managed memory cannot be used: the server's addresses are taken in this process");
    break;
  }
  for (CUdeviceptr taken : unusable) forward::cuMemFree_v2(caller, taken);
  if (result) return result;
  out = address;
  caller.server->managed_allocations.note_mapped(caller.context_handle, address);
  return CUDA_SUCCESS;
}

CUresult allocate_managed(const Caller& caller, uint64_t bytes, unsigned flags, CUdeviceptr& out) {
  // No page may belong to two allocations of the server. The driver gives each allocation of at least one block pages
  // of its own.
  if (bytes > ManagedHeap::kLargestBytes)
    return allocate_mapped(caller, std::max(bytes, ManagedHeap::kBlockBytes), flags, out);
  ManagedAllocations& all = caller.server->managed_allocations;
  for (;;) {
    if (auto address = all.take_small(caller.context_handle, bytes)) {
      out = *address;
      return CUDA_SUCCESS;
    }
    CUdeviceptr block = 0;
    if (CUresult error = allocate_mapped(caller, ManagedHeap::kBlockBytes, CU_MEM_ATTACH_GLOBAL, block)) return error;
    all.add_block(caller.context_handle, block);
  }
}

// Returns the managed range that contains all of [address, address + bytes), or none.
std::optional<AddressRange> managed_range(CUdeviceptr address, size_t bytes) {
  auto range = address_map().find(address);
  if (!range || !is_managed(range->kind) || bytes == 0 || !range->contains(address, bytes)) return std::nullopt;
  return range;
}

bool known_device(const CUmemLocation& location) {
  return location.type != CU_MEM_LOCATION_TYPE_DEVICE || process()->device(location.id) != nullptr;
}

}  // namespace

namespace hand {

CUresult cuMemAllocManaged(const Caller& caller, CUdeviceptr* dptr, size_t bytesize, unsigned int flags) {
  if (bytesize == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = caller.server->captures.permit_unsafe_call()) return error;
  if (!offered(caller)) {
    log_stderr("managed memory is not offered: the server's device cannot share it with running work");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  CUdeviceptr address = 0;
  if (CUresult error = allocate_managed(caller, bytesize, flags, address)) return error;
  publish_range({.base = address,
                 .bytes = bytesize,
                 .kind = RangeKind::managed,
                 .device = caller.state->device,
                 .server = caller.server,
                 .context = caller.context_handle});
  *dptr = address;
  return CUDA_SUCCESS;
}

CUresult cuMemAdvise_v2(const Caller& caller, CUdeviceptr devPtr, size_t count, CUmem_advise advice,
                        CUmemLocation location) {
  bool known = advice >= CU_MEM_ADVISE_SET_READ_MOSTLY && advice <= CU_MEM_ADVISE_UNSET_ACCESSED_BY;
  // Advice about read-mostly copies ignores the location.
  bool placed = advice != CU_MEM_ADVISE_SET_READ_MOSTLY && advice != CU_MEM_ADVISE_UNSET_READ_MOSTLY;
  if (!known || !managed_range(devPtr, count) || (placed && !known_device(location))) return CUDA_ERROR_INVALID_VALUE;
  // The ignored location may be invalid, so the server gets a valid one.
  if (!placed) location = {.type = CU_MEM_LOCATION_TYPE_HOST, .id = 0};
  return forward::cuMemAdvise_v2(caller, devPtr, count, advice, location);
}

CUresult cuMemAdvise(const Caller& caller, CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device) {
  CUmemLocation location{.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE,
                         .id = std::max(device, 0)};
  return hand::cuMemAdvise_v2(caller, devPtr, count, advice, location);
}

CUresult cuMemPrefetchAsync_v2(const Caller& caller, CUdeviceptr devPtr, size_t count, CUmemLocation location,
                               unsigned int flags, CUstream hStream, bool per_thread) {
  CUresult error = CUDA_SUCCESS;
  if (caller.state) resolve_stream(caller, hStream, per_thread, error);
  if (error) return error;
  if (flags != 0 || !managed_range(devPtr, count)) return CUDA_ERROR_INVALID_VALUE;
  if (!caller.state) return CUDA_ERROR_INVALID_CONTEXT;
  if (!known_device(location)) return CUDA_ERROR_INVALID_DEVICE;
  return forward::cuMemPrefetchAsync_v2(caller, devPtr, count, location, flags, hStream, per_thread);
}

CUresult cuMemPrefetchAsync(const Caller& caller, CUdeviceptr devPtr, size_t count, CUdevice dstDevice,
                            CUstream hStream, bool per_thread) {
  CUmemLocation location{.type = dstDevice == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE,
                         .id = std::max(dstDevice, 0)};
  return hand::cuMemPrefetchAsync_v2(caller, devPtr, count, location, 0, hStream, per_thread);
}

CUresult cuMemRangeGetAttribute(const Caller& caller, void* data, size_t dataSize, CUmem_range_attribute attribute,
                                CUdeviceptr devPtr, size_t count) {
  if (!data || dataSize == 0 || dataSize % sizeof(int) != 0 || !managed_range(devPtr, count))
    return CUDA_ERROR_INVALID_VALUE;
  return forward::cuMemRangeGetAttribute(caller, data, dataSize, attribute, devPtr, count);
}

CUresult cuMemRangeGetAttributes(const Caller& caller, void** data, size_t* dataSizes,
                                 CUmem_range_attribute* attributes, size_t numAttributes, CUdeviceptr devPtr,
                                 size_t count) {
  if (!data || !dataSizes || !attributes || numAttributes == 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < numAttributes; ++i) {
    if (CUresult error = hand::cuMemRangeGetAttribute(caller, data[i], dataSizes[i], attributes[i], devPtr, count))
      return error;
  }
  return CUDA_SUCCESS;
}

// Pools of managed memory are refused: the client does not map their addresses, so the program could not access their
// memory.
CUresult cuMemPoolCreate(const Caller& caller, CUmemoryPool* pool, const CUmemPoolProps* poolProps) {
  if (!pool || !poolProps) return CUDA_ERROR_INVALID_VALUE;
  if (poolProps->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED) return CUDA_ERROR_NOT_SUPPORTED;
  if (poolProps->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    CUresult error = CUDA_SUCCESS;
    server_device(poolProps->location.id, error);
    if (error) return CUDA_ERROR_INVALID_VALUE;  // as measured on driver 580
  }
  return forward::cuMemPoolCreate(caller, pool, poolProps);
}

CUresult cuDeviceGetMemPool(const Caller& caller, CUmemoryPool* pool, CUdevice device) {
  CUresult error = CUDA_SUCCESS;
  server_device(device, error);
  if (error) return CUDA_ERROR_INVALID_VALUE;  // as measured on driver 580
  return forward::cuDeviceGetMemPool(caller, pool, device);
}

CUresult cuMemGetDefaultMemPool(const Caller& caller, CUmemoryPool* pool_out, CUmemLocation* location,
                                CUmemAllocationType type) {
  if (type == CU_MEM_ALLOCATION_TYPE_MANAGED) return CUDA_ERROR_NOT_SUPPORTED;
  return forward::cuMemGetDefaultMemPool(caller, pool_out, location, type);
}

CUresult cuMemGetMemPool(const Caller& caller, CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  if (type == CU_MEM_ALLOCATION_TYPE_MANAGED) return CUDA_ERROR_NOT_SUPPORTED;
  return forward::cuMemGetMemPool(caller, pool, location, type);
}

// The stream of an attachment matters only on devices that cannot access managed memory while the CPU does. On such
// devices managed memory is not offered.
CUresult cuStreamAttachMemAsync(const StreamCall& on, CUstream, CUdeviceptr dptr, size_t length, unsigned int flags,
                                bool) {
  auto range = managed_range(dptr, 1);
  bool whole = range && range->base == dptr && (length == 0 || length == range->bytes);
  bool known = flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST ||
               (flags == CU_MEM_ATTACH_SINGLE && on.wire_stream > wire::kStreamLegacy);
  if (!whole || !known) return CUDA_ERROR_INVALID_VALUE;
  if (on.state && on.state->capture.load(std::memory_order_relaxed) != 0) {
    // The server's driver invalidates the capture.
    return forward::cuStreamAttachMemAsync(on.caller, on.stream(), dptr, length, flags, false);
  }
  return CUDA_SUCCESS;
}

}  // namespace hand
}  // namespace gpuwire::client
