// Device memory. The server chooses its addresses. If the addresses of an allocation are in use in this process, the
// client puts the allocation aside and requests another one.
#include <algorithm>
#include <atomic>
#include <span>
#include <vector>

#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client/session_sends.hpp"
#include "client_stub/driver/process/log_stderr.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/copy/copy_rules.hpp"
#include "client_stub/driver/state/graph/graph_copies.hpp"
#include "client_stub/driver/state/managed_memory/managed.hpp"
#include "client_stub/driver/state/memory/address_map.hpp"
#include "client_stub/driver/process/process.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/memory/allocation_handle.hpp"
#include "client_stub/driver/state/copy/posted_uploads.hpp"
#include "client_stub/driver/state/graph/graph_records.hpp"
#include "client_stub/driver/state/memory/cached_memory.hpp"
#include "client_stub/driver/state/stream/capture.hpp"
#include "client_stub/driver/state/stream/host_callbacks.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {
namespace {

constexpr size_t kAddressRetriesMax = 16;
// The driver cuts small allocations from blocks of this size. If a block lies at addresses in use, the client may have
// to skip all of its allocations.
constexpr uint64_t kBlockBytes = 2u << 20;
constexpr uint64_t kSmallestBytes = 512;
// The maximum of small allocations that are put aside. They are not freed, because the driver's allocator would return
// them again.
constexpr uint64_t kAsideBytesMax = 64u << 20;
// The size of another process's memory if the server cannot report it: the driver maps whole blocks of this size.
constexpr uint64_t kImportedBytes = kBlockBytes;

size_t retries_max(uint64_t bytes) {
  return kAddressRetriesMax + size_t(kBlockBytes / std::max(bytes, kSmallestBytes));
}

// Returns whether `count` small allocations may stay unused at the server, and counts them then. Relaxed: the counter
// publishes nothing else.
bool put_aside(ServerSession& server, uint64_t bytes, size_t count) {
  std::atomic<uint64_t>& aside = server.bytes_put_aside;
  if (bytes >= kBlockBytes) return false;
  uint64_t more = std::max(bytes, kSmallestBytes) * count;
  if (aside.fetch_add(more, std::memory_order_relaxed) + more <= kAsideBytesMax) return true;
  aside.fetch_sub(more, std::memory_order_relaxed);
  return false;
}

// Allocates a range. `ask` requests it from the server and stores its address and bytes; `give_back` frees an unusable
// one.
template <class Ask, class GiveBack>
CUresult allocate(const Caller& caller, AddressRange range, CUdeviceptr* out, Ask&& ask, GiveBack&& give_back) {
  std::vector<CUdeviceptr> unusable;
  CUresult result;
  CUdeviceptr address = 0;
  auto ask_again = [&] {
    CUresult answer = ask(address, range.bytes);
    // The cached blocks may hold the missing memory.
    if (answer == CUDA_ERROR_OUT_OF_MEMORY && free_cached_memory(caller)) answer = ask(address, range.bytes);
    return answer;
  };
  while ((result = ask_again()) == CUDA_SUCCESS) {
    range.base = address;
    range.reserved = address_reservations().reserve(range.base, range.bytes);
    if (range.reserved) break;
    unusable.push_back(range.base);
    if (unusable.size() < retries_max(range.bytes)) continue;
    log_stderr("device memory cannot be used: the server's addresses are taken in this process");
    result = CUDA_ERROR_OUT_OF_MEMORY;
    break;
  }
  if (result || !put_aside(*caller.server, range.bytes, unusable.size())) {
    for (CUdeviceptr taken : unusable) give_back(taken);
  }
  if (result) return result;
  // Reserved and mapped ranges belong to no context, and outlive all contexts.
  range.context = range.kind == RangeKind::mapped ? 0 : caller.context_handle;
  range.device = caller.state ? caller.state->device : -1;
  range.server = caller.server;
  publish_range(range);
  *out = range.base;
  return CUDA_SUCCESS;
}

// Ends the range that begins at `address`, if `accept` approves its kind, and calls `free`, which frees it at the
// server.
template <class Free>
CUresult end_range(CUdeviceptr address, bool (*accept)(RangeKind), Free&& free) {
  auto range = address_map().take(address, [&](const AddressRange& found) { return accept(found.kind); });
  if (!range) return CUDA_ERROR_INVALID_VALUE;
  // The range ends here before the server frees it. In the other order another thread could get the same address from
  // the server while the range still exists here.
  release_range(*range);
  return free();
}

// Records an allocation in a capturing stream as the graph's.
void note_captured(const Caller& caller, CUstream stream, bool per_thread, CUdeviceptr address) {
  if (!caller.server->captures.any()) [[likely]]
    return;
  CUresult error = CUDA_SUCCESS;
  uint64_t capture = capture_of(caller, resolve_stream(caller, stream, per_thread, error));
  if (!error && capture) caller.server->graph_records.note_allocation(capture, address);
}

// Returns the kind of memory that is allocated in the order of the stream.
RangeKind kind_on_stream(const Caller& caller, CUstream stream, bool per_thread) {
  if (!caller.server->captures.any()) [[likely]]
    return RangeKind::pool;
  CUresult error = CUDA_SUCCESS;
  uint64_t wire_stream = resolve_stream(caller, stream, per_thread, error);
  return !error && capture_of(caller, wire_stream) ? RangeKind::graph : RangeKind::pool;
}

// Returns the pool of an allocation that names none; 0 for the device's default pool, as long as the program has set no
// other.
uint64_t pool_of_device(const Caller& caller) {
  if (!caller.server->cached_memory.device_pools_changed() || !caller.state) [[likely]]
    return 0;
  CUmemoryPool pool = nullptr;
  const CUresult result = forward::cuDeviceGetMemPool(caller, &pool, caller.state->device);
  return result == CUDA_SUCCESS ? reinterpret_cast<uint64_t>(pool) : 0;
}

// Checks a call for memory in stream order against captures. In the order of a capturing stream the memory becomes part
// of the graph; in the order of another stream the rules of captures apply.
CUresult permit_on_stream(const Caller& caller, CUstream stream, bool per_thread) {
  CUresult error = CUDA_SUCCESS;
  uint64_t wire_stream = resolve_stream(caller, stream, per_thread, error);
  if (error || capture_of(caller, wire_stream)) return error;
  return caller.server->captures.permit_unsafe_call();
}

// In stream order an allocation of no bytes is the NULL pointer, and no error (as measured on driver 580), unlike with
// cuMemAlloc.
CUresult allocate_nothing(CUdeviceptr* out) {
  *out = 0;
  return CUDA_SUCCESS;
}

// Waits as cuMemFree does natively, until the host functions of streams and of launched graphs have returned. During a
// capture a wait for the context is forbidden, so only the functions of streams are awaited.
CUresult await_functions(const Caller& caller) {
  if (in_host_callback()) return CUDA_SUCCESS;
  if (!caller.server->captures.any()) return forward::cuCtxSynchronize(caller);
  caller.server->host_callbacks.await_none();
  return CUDA_SUCCESS;
}

// Takes a cached block for an allocation, which then needs no frame. Returns false if there is no suitable block.
bool take_cached(const Caller& caller, const BlockUse& use, CUdeviceptr* out) {
  CachedMemory& kept = caller.server->cached_memory;
  if (kept.take(caller, use, out)) return true;
  if (use.kind == RangeKind::pool) kept.nothing_found(caller);
  return false;
}

// Returns the key of the cached blocks that an allocation in the order of the stream can use.
BlockUse use_on_stream(const Caller& caller, uint64_t bytes, uint64_t pool, CUstream stream, bool per_thread) {
  CUresult error = CUDA_SUCCESS;
  return {.kind = RangeKind::pool,
          .context = caller.context_handle,
          .bytes = bytes,
          .pool = pool,
          .stream = resolve_stream(caller, stream, per_thread, error)};
}

// Precondition: the server's driver has accepted these rights.
void set_access(AddressRange& part, std::span<const CUmemAccessDesc> rights) {
  for (const CUmemAccessDesc& right : rights) {
    if (right.location.type != CU_MEM_LOCATION_TYPE_DEVICE || right.location.id < 0 || right.location.id >= 64)
      continue;
    const uint64_t device = uint64_t{1} << right.location.id;
    part.readable_by =
        right.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ? part.readable_by & ~device : part.readable_by | device;
    part.writable_by =
        right.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? part.writable_by | device : part.writable_by & ~device;
  }
}

bool is_freed(RangeKind kind) {
  return kind == RangeKind::device || kind == RangeKind::pool || kind == RangeKind::managed;
}
bool is_allocation(RangeKind kind) { return kind == RangeKind::device || kind == RangeKind::pool; }

}  // namespace

namespace hand {

CUresult cuMemAlloc_v2(const Caller& caller, CUdeviceptr* dptr, size_t bytesize) {
  if (CUresult error = caller.server->captures.permit_unsafe_call()) return error;
  if (!dptr || bytesize == 0) return CUDA_ERROR_INVALID_VALUE;
  const BlockUse use{.context = caller.context_handle, .bytes = bytesize};
  if (take_cached(caller, use, dptr)) return CUDA_SUCCESS;
  caller.server->cached_memory.misses(caller, use);
  CUresult result = allocate(
      caller, {.kind = RangeKind::device}, dptr,
      [&](CUdeviceptr& address, uint64_t& bytes) {
        bytes = bytesize;
        return forward::cuMemAlloc_v2(caller, &address, bytesize);
      },
      [&](CUdeviceptr unusable) { forward::cuMemFree_v2(caller, unusable); });
  if (result == CUDA_SUCCESS) caller.server->cached_memory.missed(caller, use);
  return result;
}

CUresult cuMemAllocPitch_v2(const Caller& caller, CUdeviceptr* dptr, size_t* pPitch, size_t WidthInBytes, size_t Height,
                            unsigned int ElementSizeBytes) {
  // These checks precede the rules of captures (as measured on driver 580).
  if (!dptr || !pPitch || WidthInBytes == 0 || Height == 0) return CUDA_ERROR_INVALID_VALUE;
  if (ElementSizeBytes != 4 && ElementSizeBytes != 8 && ElementSizeBytes != 16) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = caller.server->captures.permit_unsafe_call()) return error;
  CUresult result = allocate(
      caller, {.kind = RangeKind::device}, dptr,
      [&](CUdeviceptr& address, uint64_t& bytes) {
        CUresult error = forward::cuMemAllocPitch_v2(caller, &address, pPitch, WidthInBytes, Height, ElementSizeBytes);
        bytes = error ? 0 : *pPitch * Height;
        return error;
      },
      [&](CUdeviceptr unusable) { forward::cuMemFree_v2(caller, unusable); });
  return result;
}

CUresult cuMemFree_v2(const Caller& caller, CUdeviceptr dptr) {
  if (dptr == 0) return CUDA_SUCCESS;
  auto range = address_map().find(dptr);
  if (range && range->base == dptr && is_freed(range->kind)) {
    if (CUresult error = await_work(caller)) return error;
  }
  if (range && range->kind == RangeKind::managed) return free_managed(caller, dptr);
  // The graph's next launch allocates the memory at the same address, so the range stays. Only the server's driver
  // knows whether a launch has allocated it.
  if (range && range->kind == RangeKind::graph) {
    // The server would delay a free behind host functions, and the driver's answer with it.
    if (CUresult error = await_functions(caller)) return error;
    CUresult result = forward::cuMemFree_v2(caller, dptr);
    return result ? result : await_verdict(caller);
  }
  CUresult kept = CUDA_SUCCESS;
  if (range && range->base == dptr && caller.server->cached_memory.keep(caller, *range, kept)) return kept;
  return end_range(dptr, is_allocation, [&] { return forward::cuMemFree_v2(caller, dptr); });
}

// Cached memory is free for the program. The client adds it to the driver's figure instead of releasing it, because a
// release takes the driver longer than the rest of the call.
CUresult cuMemGetInfo_v2(const Caller& caller, size_t* free, size_t* total) {
  caller.server->cached_memory.give_back_but_whole(caller);
  size_t at_server = 0, all = 0;
  CUresult result = forward::cuMemGetInfo_v2(caller, &at_server, &all);
  if (result) return result;
  if (free) *free = std::min(all, at_server + caller.server->cached_memory.whole_bytes(caller.state->device));
  if (total) *total = all;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* pbase, size_t* psize, CUdeviceptr dptr) {
  Caller caller = enter_context_at(dptr);
  const bool asks = pbase || psize;
  // A call without outputs succeeds in a context with a fault, and without a context, too.
  const bool needless = is_sticky(caller.error) || caller.error == CUDA_ERROR_INVALID_CONTEXT;
  if (!asks && (!caller.error || needless)) return CUDA_SUCCESS;
  if (caller.error) return caller.error;
  auto range = allocation_at(dptr);
  // The driver does not find a mapping without access (as measured on driver 580).
  if (!range || !range->is_accessible()) return CUDA_ERROR_NOT_FOUND;
  if (pbase) *pbase = range->base;
  if (psize) *psize = range->bytes;
  return CUDA_SUCCESS;
}

namespace {

// Opens another process's memory. `bytes` gets its size, or kImportedBytes if the server does not report it.
CUresult open_ipc_memory(const Caller& caller, const CUipcMemHandle& handle, unsigned flags, CUdeviceptr& address,
                         uint64_t& bytes) {
  bytes = kImportedBytes;
  if (!caller.session->facts().knows(uint32_t(wire::SessionOrdinal::open_ipc_memory)))
    return forward::cuIpcOpenMemHandle_v2(caller, &address, handle, flags);
  return send::call_open_ipc_memory(*caller.session, caller.context,
                                    {.handle = {&handle, sizeof handle}, .flags = flags},
                                    [&](schema::ModuleGlobalReply::Reader results) {
                                      address = results.getAddress();
                                      if (results.getBytes() != 0) bytes = results.getBytes();
                                    });
}

}  // namespace

// --- in stream order -----------------------------------------------------------------------------------------------

CUresult cuMemAllocAsync(const Caller& caller, CUdeviceptr* dptr, size_t bytesize, CUstream hStream, bool per_thread) {
  if (!dptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = permit_on_stream(caller, hStream, per_thread)) return error;
  if (bytesize == 0) return allocate_nothing(dptr);
  if (take_cached(caller, use_on_stream(caller, bytesize, 0, hStream, per_thread), dptr)) return CUDA_SUCCESS;
  CUresult result = allocate(
      caller, {.kind = kind_on_stream(caller, hStream, per_thread), .owner = pool_of_device(caller)}, dptr,
      [&](CUdeviceptr& address, uint64_t& bytes) {
        bytes = bytesize;
        return forward::cuMemAllocAsync(caller, &address, bytesize, hStream, per_thread);
      },
      [&](CUdeviceptr unusable) { forward::cuMemFreeAsync(caller, unusable, hStream, per_thread); });
  if (result == CUDA_SUCCESS) note_captured(caller, hStream, per_thread, *dptr);
  return result;
}

CUresult cuMemAllocFromPoolAsync(const Caller& caller, CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool,
                                 CUstream hStream, bool per_thread) {
  CUresult unusable = CUDA_SUCCESS;
  resolve_stream(caller, hStream, per_thread, unusable);
  // The NULL stream beside a capture is checked before the other arguments (as measured on driver 580).
  if (unusable == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return unusable;
  if (!dptr || !known_handle(wire::HandleKind::memory_pool, reinterpret_cast<uint64_t>(pool)))
    return CUDA_ERROR_INVALID_VALUE;
  if (!caller.state) return CUDA_ERROR_INVALID_CONTEXT;
  if (CUresult error = permit_on_stream(caller, hStream, per_thread)) return error;
  if (bytesize == 0) return allocate_nothing(dptr);
  if (take_cached(caller, use_on_stream(caller, bytesize, reinterpret_cast<uint64_t>(pool), hStream, per_thread), dptr))
    return CUDA_SUCCESS;
  CUresult result = allocate(
      caller, {.kind = kind_on_stream(caller, hStream, per_thread), .owner = reinterpret_cast<uint64_t>(pool)}, dptr,
      [&](CUdeviceptr& address, uint64_t& bytes) {
        bytes = bytesize;
        return forward::cuMemAllocFromPoolAsync(caller, &address, bytesize, pool, hStream, per_thread);
      },
      [&](CUdeviceptr unusable) { forward::cuMemFreeAsync(caller, unusable, hStream, per_thread); });
  if (result == CUDA_SUCCESS) note_captured(caller, hStream, per_thread, *dptr);
  return result;
}

CUresult cuMemFreeAsync(const Caller& caller, CUdeviceptr dptr, CUstream hStream, bool per_thread) {
  CUresult error = CUDA_SUCCESS;
  uint64_t wire_stream = resolve_stream(caller, hStream, per_thread, error);
  if (error) return error;
  uint64_t capture = capture_of(caller, wire_stream);
  // This check precedes that of the address: captures forbid the call for NULL, too (as measured on driver 580).
  if (!capture && (error = caller.server->captures.permit_unsafe_call())) return error;
  if (dptr == 0) return CUDA_SUCCESS;
  auto range = address_map().find(dptr);
  if (range && range->kind == RangeKind::managed) return free_managed(caller, dptr);
  if (capture) caller.server->graph_records.note_free(capture, dptr);
  if (range && range->kind == RangeKind::graph) {
    CUresult result = forward::cuMemFreeAsync(caller, dptr, hStream, per_thread);
    return result ? result : await_verdict(caller);
  }
  CUresult kept = CUDA_SUCCESS;
  if (range && range->base == dptr && caller.server->cached_memory.keep_in_order(caller, *range, wire_stream, kept))
    return kept;
  return end_range(dptr, is_allocation, [&] { return forward::cuMemFreeAsync(caller, dptr, hStream, per_thread); });
}

CUresult cuMemPoolGetAccess(const Caller& caller, CUmemAccess_flags* flags, CUmemoryPool pool,
                            CUmemLocation* location) {
  // For an invalid device this call returns CUDA_ERROR_INVALID_VALUE (as measured on driver 580).
  bool known = location && (location->type != CU_MEM_LOCATION_TYPE_DEVICE || process()->device(location->id));
  if (!flags || !known) return CUDA_ERROR_INVALID_VALUE;
  return forward::cuMemPoolGetAccess(caller, flags, pool, location);
}

// --- reserved addresses and memory of other processes --------------------------------------------------------------

CUresult cuMemAddressReserve(const Caller& caller, CUdeviceptr* ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags) {
  if (!ptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = allocate(
      caller, {.kind = RangeKind::mapped}, ptr,
      [&](CUdeviceptr& address, uint64_t& bytes) {
        bytes = size;
        return forward::cuMemAddressReserve(caller, &address, size, alignment, addr, flags);
      },
      [&](CUdeviceptr unusable) { forward::cuMemAddressFree(caller, unusable, size); });
  return result;
}

CUresult cuMemAddressFree(const Caller& caller, CUdeviceptr ptr, size_t size) {
  auto range = address_map().find(ptr);
  if (!range || range->kind != RangeKind::mapped || range->base != ptr || range->bytes != size)
    return CUDA_ERROR_INVALID_VALUE;
  // The server's driver refuses the call while something is mapped in the range, so the range ends after the driver's
  // answer. By then another thread may have reserved the same addresses; its range has another `buffer_id`.
  CUresult result = forward::cuMemAddressFree(caller, ptr, size);
  if (result) return result;
  if (auto ended =
          address_map().take(ptr, [&](const AddressRange& found) { return found.buffer_id == range->buffer_id; }))
    release_range(*ended);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(const Caller& caller, CUdeviceptr ptr, size_t size, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  CUresult result = forward::cuMemMap(caller, ptr, size, offset, handle, flags);
  if (result == CUDA_SUCCESS)
    mapped_parts().insert({.base = ptr,
                           .bytes = size,
                           .kind = RangeKind::mapped,
                           .device = caller.server->allocation_holders.device_of(handle),
                           .server = caller.server,
                           .readable_by = 0,
                           .writable_by = 0});
  return result;
}

CUresult cuMemUnmap(const Caller& caller, CUdeviceptr ptr, size_t size) {
  CUresult result = forward::cuMemUnmap(caller, ptr, size);
  if (result == CUDA_SUCCESS)
    mapped_parts().take_all([&](const AddressRange& part) { return part.base >= ptr && part.end() <= ptr + size; },
                            [](const AddressRange&) {});
  return result;
}

CUresult cuMemSetAccess(const Caller& caller, CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc, size_t count) {
  CUresult result = forward::cuMemSetAccess(caller, ptr, size, desc, count);
  if (result == CUDA_SUCCESS)
    mapped_parts().update_within(ptr, size, [&](AddressRange& part) { set_access(part, {desc, count}); });
  return result;
}

CUresult cuIpcGetMemHandle(const Caller& caller, CUipcMemHandle* handle, CUdeviceptr address) {
  caller.server->posted_uploads.end(caller);
  address_map().update(address, [](AddressRange& range) { range.others_know = true; });
  return forward::cuIpcGetMemHandle(caller, handle, address);
}

CUresult cuIpcOpenMemHandle_v2(const Caller& caller, CUdeviceptr* pdptr, CUipcMemHandle handle, unsigned int Flags) {
  if (!pdptr) return CUDA_ERROR_INVALID_VALUE;
  caller.server->posted_uploads.end(caller);
  CUresult result = allocate(
      caller, {.kind = RangeKind::imported}, pdptr,
      [&](CUdeviceptr& address, uint64_t& bytes) { return open_ipc_memory(caller, handle, Flags, address, bytes); },
      [&](CUdeviceptr unusable) { forward::cuIpcCloseMemHandle(caller, unusable); });
  return result;
}

CUresult cuMemPoolImportPointer(const Caller& caller, CUdeviceptr* ptr_out, CUmemoryPool pool,
                                CUmemPoolPtrExportData* shareData) {
  auto handle = reinterpret_cast<uint64_t>(pool);
  if (!ptr_out || !shareData || !known_handle(wire::HandleKind::memory_pool, handle)) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = allocate(
      caller, {.kind = RangeKind::pool, .owner = handle}, ptr_out,
      [&](CUdeviceptr& address, uint64_t& bytes) {
        return send::call_import_pool_pointer(*caller.session, caller.context,
                                              {.pool = handle, .data = {shareData, sizeof *shareData}},
                                              [&](schema::ModuleGlobalReply::Reader results) {
                                                address = results.getAddress();
                                                bytes = results.getBytes();
                                              });
      },
      [&](CUdeviceptr unusable) { forward::cuMemFree_v2(caller, unusable); });
  return result;
}

CUresult cuIpcCloseMemHandle(const Caller& caller, CUdeviceptr dptr) {
  return end_range(
      dptr, [](RangeKind kind) { return kind == RangeKind::imported; },
      [&] { return forward::cuIpcCloseMemHandle(caller, dptr); });
}

}  // namespace hand
}  // namespace gpuwire::client
