// Page-locked host memory. Copies into it may end after the call. The device reaches it through a host region, which is
// made when the device gets a pointer to the memory, or when the program asks for its device pointer. On the server's
// own machine an allocation is memory that both processes have mapped, and a region from the beginning: the server's
// driver copies from and to the program's pages. With unified addressing the flags of mapped memory have no effect.
#include <sys/mman.h>

#include <new>
#include <vector>

#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client_stub/driver/state/memory/address_map.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/copy/copy_rules.hpp"
#include "client_stub/driver/process/process.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/host_memory/host_regions.hpp"
#include "client_stub/driver/state/host_memory/memory_rights.hpp"
#include "client_stub/driver/state/host_memory/pinned_pointers.hpp"
#include "client_stub/driver/state/stream/capture.hpp"
#include "client_stub/driver/state/copy/memory_in_flight.hpp"

namespace gpuwire::client {

namespace hand {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr unsigned kAllocFlags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
constexpr unsigned kRegisterFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                                    CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;

bool registers_read_only(const Caller& caller) {
  const auto& attributes = process()->devices[size_t(caller.state->device)].facts->attributes;
  constexpr size_t kIndex = CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED;
  return kIndex < attributes.size() && attributes[kIndex] != 0;
}

CUresult allocate_pinned(const Caller& caller, void** pp, size_t bytes, unsigned flags) {
  if (CUresult error = caller.server->captures.permit_unsafe_call()) return error;
  if (!pp || (flags & ~kAllocFlags)) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > SIZE_MAX - kPageBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  // An allocation of no bytes is the NULL pointer, and no error (as measured on driver 580).
  if (bytes == 0) {
    *pp = nullptr;
    return leave(caller, CUDA_SUCCESS);
  }
  size_t mapped = (bytes + kPageBytes - 1) & ~(kPageBytes - 1);
  void* memory = caller.server->host_regions.allocate_shared(caller, mapped);
  bool shared = memory != nullptr;
  if (!shared) memory = map_pinned(mapped);
  if (!memory) return CUDA_ERROR_OUT_OF_MEMORY;
  publish_range({.base = reinterpret_cast<uint64_t>(memory),
                 .bytes = bytes,
                 .kind = RangeKind::host_allocated,
                 .device = caller.state->device,
                 .server = caller.server,
                 .context = caller.context_handle,
                 .host_flags = flags});
  if (!shared)
    caller.server->pinned_pointers.add(reinterpret_cast<uint64_t>(memory), bytes,
                                       PinnedPointers::Around::pinned_memory);
  *pp = memory;
  return CUDA_SUCCESS;
}

// Waits until no copy, of a graph or by itself, reads or writes the range, as the driver does before it releases
// memory. Returns false if a copy may still be in flight.
bool settle(const Caller& caller, const AddressRange& range) {
  // Large copies to the device are sent directly from the program's memory.
  caller.session->finish_sending();
  // While a stream captures, a wait would invalidate the capture.
  bool capturing = caller.state->captures.load(std::memory_order_relaxed) != 0;
  if (!capturing && caller.server->host_regions.holds(range.base, range.bytes))
    static_cast<void>(custom::cuCtxSynchronize());
  MemoryInFlight& in_flight = caller.server->in_flight;
  if (in_flight.in_use(range.base, range.bytes)) static_cast<void>(synchronise_context(caller));
  return !in_flight.in_use(range.base, range.bytes);
}

std::optional<AddressRange> find_host(const void* p, RangeKind kind) {
  auto range = address_map().find(reinterpret_cast<uint64_t>(p));
  return range && range->kind == kind && range->base == reinterpret_cast<uint64_t>(p) ? range : std::nullopt;
}

}  // namespace

CUresult cuMemAllocHost_v2(const Caller& caller, void** pp, size_t bytesize) {
  return allocate_pinned(caller, pp, bytesize, 0);
}

CUresult cuMemHostAlloc(const Caller& caller, void** pp, size_t bytesize, unsigned int Flags) {
  return allocate_pinned(caller, pp, bytesize, Flags);
}

CUresult cuMemFreeHost(const Caller& caller, void* p) {
  if (!p) return leave(caller, CUDA_SUCCESS);
  auto range = find_host(p, RangeKind::host_allocated);
  if (!range) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = await_work(caller, GivenUp::here)) return leave(caller, error);
  bool settled = settle(caller, *range);
  if (!address_map().take(range->base,
                          [](const AddressRange& found) { return found.kind == RangeKind::host_allocated; })) {
    return CUDA_ERROR_INVALID_VALUE;  // another thread was faster
  }
  caller.server->host_regions.end(caller, range->base);
  // Memory that a late copy may still write to stays mapped.
  if (settled) munmap(p, (range->bytes + kPageBytes - 1) & ~(kPageBytes - 1));
  return leave(caller, CUDA_SUCCESS);
}

CUresult cuMemHostRegister_v2(const Caller& caller, void* p, size_t bytesize, unsigned int Flags) {
  if (!p || bytesize == 0 || (Flags & ~kRegisterFlags)) return CUDA_ERROR_INVALID_VALUE;
  if (Flags & CU_MEMHOSTREGISTER_IOMEMORY) return CUDA_ERROR_NOT_SUPPORTED;
  if ((Flags & CU_MEMHOSTREGISTER_READ_ONLY) && !registers_read_only(caller)) return CUDA_ERROR_NOT_SUPPORTED;
  AddressRange range{.base = reinterpret_cast<uint64_t>(p),
                     .bytes = bytesize,
                     .kind = RangeKind::host_registered,
                     .device = caller.state->device,
                     .server = caller.server,
                     .context = caller.context_handle,
                     .host_flags = Flags};
  const bool managed = classify(range.base, 1).kind == PlaceKind::managed;
  if (range.end() < range.base || managed || !is_mapped(range.base, range.bytes)) return CUDA_ERROR_INVALID_VALUE;
  // The device must be able to write to the memory (as measured on driver 580).
  if (!(Flags & CU_MEMHOSTREGISTER_READ_ONLY) && !may_be_written(range.base, range.bytes))
    return CUDA_ERROR_INVALID_VALUE;
  if (!address_map().insert_if_free(range)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  caller.server->pinned_pointers.add(range.base, range.bytes);
  return CUDA_SUCCESS;
}

// The first version ignores unknown flags (as measured on driver 580).
CUresult cuMemHostRegister(const Caller& caller, void* p, size_t bytesize, unsigned int Flags) {
  return hand::cuMemHostRegister_v2(caller, p, bytesize, Flags & kRegisterFlags);
}

CUresult cuMemHostUnregister(const Caller& caller, void* p) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  auto range = find_host(p, RangeKind::host_registered);
  if (!range) {
    auto around = address_map().find(reinterpret_cast<uint64_t>(p));
    bool inside = around && around->kind == RangeKind::host_registered;
    return inside ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  if (CUresult error = await_work(caller, GivenUp::here)) return leave(caller, error);
  settle(caller, *range);
  bool taken =
      address_map()
          .take(range->base, [](const AddressRange& found) { return found.kind == RangeKind::host_registered; })
          .has_value();
  if (taken) caller.server->host_regions.end(caller, range->base);
  return taken ? leave(caller, CUDA_SUCCESS) : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

// With unified addressing the device pointer is the host pointer. The device reaches the memory from this call on.
CUresult cuMemHostGetDevicePointer_v2(const Caller& caller, CUdeviceptr* pdptr, void* p, unsigned int Flags) {
  if (!pdptr || !p || Flags != 0) return CUDA_ERROR_INVALID_VALUE;
  auto range = address_map().find(reinterpret_cast<uint64_t>(p));
  if (!range || !is_host(range->kind)) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = caller.server->host_regions.mirror(caller, range->base, range->bytes))
    return leave(caller, error);
  *pdptr = reinterpret_cast<uint64_t>(p);
  return leave(caller, CUDA_SUCCESS);
}

// With unified addressing all host memory is mapped, and the reported flags include that (as measured on driver 580).
CUresult cuMemHostGetFlags(const Caller&, unsigned int* pFlags, void* p) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  auto range = address_map().find(reinterpret_cast<uint64_t>(p));
  if (!range || (!is_host(range->kind) && !is_managed(range->kind))) return CUDA_ERROR_INVALID_VALUE;
  *pFlags = is_host(range->kind) ? (range->host_flags & kAllocFlags) | CU_MEMHOSTALLOC_DEVICEMAP : range->host_flags;
  return CUDA_SUCCESS;
}

}  // namespace hand
}  // namespace gpuwire::client
