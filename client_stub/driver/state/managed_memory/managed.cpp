#include "client_stub/driver/state/managed_memory/managed.hpp"

#include <optional>
#include <vector>

#include "client/forward.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/process/log_stderr.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/managed_memory/managed_allocations.hpp"
#include "client_stub/driver/state/managed_memory/managed_memory.hpp"
#include "client_stub/driver/state/stream/host_callbacks.hpp"

namespace gpuwire::client {
namespace {

// The largest difference between the driver's mapping that holds a managed variable and the variable.
constexpr uint64_t kMappingSlackMax = 1u << 30;

// Frees a whole allocation of the server's driver, which may have held small allocations.
CUresult free_whole(const Caller& caller, ServerSession& server, uint64_t context, uint64_t address) {
  server.managed_allocations.note_unmapped(context, address);
  server.managed_memory.unmap(address);
  return forward::cuMemFree_v2(caller, address);
}

// Memory must be at rest before it is reused, as natively after cuMemFree. While streams of the context capture, no
// wait is possible: the block is released by a later free.
CUresult free_small(const Caller& caller, ServerSession& server, uint64_t context, const SmallAllocation& freed) {
  if (!devices_quiet(server) && !in_host_callback()) {
    if (caller.state->captures.load(std::memory_order_relaxed) != 0) {
      server.managed_allocations.put_off(context, freed);
      return CUDA_SUCCESS;
    }
    static_cast<void>(synchronise_current_context());
  }
  std::vector<SmallAllocation> at_rest = server.managed_allocations.take_put_off(context);
  at_rest.push_back(freed);
  CUresult result = CUDA_SUCCESS;
  for (const SmallAllocation& each : at_rest) {
    const std::optional<uint64_t> unused = server.managed_allocations.give_small(context, each);
    if (CUresult error = unused ? free_whole(caller, server, context, *unused) : CUDA_SUCCESS) result = error;
  }
  return result;
}

}  // namespace

CUresult free_managed(const Caller& caller, CUdeviceptr address) {
  auto range = address_map().take(address, [](const AddressRange& found) { return found.kind == RangeKind::managed; });
  if (!range) return CUDA_ERROR_INVALID_VALUE;
  if (range->bytes <= ManagedHeap::kLargestBytes)
    return free_small(caller, *range->server, range->context, {.address = address, .bytes = range->bytes});
  return free_whole(caller, *range->server, range->context, address);
}

void forget_managed_of(const ContextState& context) noexcept {
  ServerSession& server = *context.server;
  for (uint64_t base : server.managed_allocations.forget(context.handle)) server.managed_memory.unmap(base);
}

CUresult map_managed_variable(AddressRange& range, uint64_t base, uint64_t bytes) {
  range.kind = RangeKind::managed_variable;
  range.context = 0;
  bool inside = range.base >= base && range.base - base <= bytes && range.bytes <= bytes - (range.base - base);
  // A driver's mapping is somewhat larger than its content. The server's figure is not trusted, because it could fill
  // this address space.
  if (!inside || bytes - range.bytes > kMappingSlackMax) return CUDA_ERROR_UNKNOWN;
  if (range.server->managed_memory.map(base, bytes, false) == ManagedMemory::Mapped::yes) return CUDA_SUCCESS;
  log_stderr("a managed variable cannot be used: its addresses are taken in this process");
  return CUDA_ERROR_OUT_OF_MEMORY;
}

void forget_managed_variable(const AddressRange& range) noexcept {
  range.server->managed_memory.unmap_holder(range.base);
}

}  // namespace gpuwire::client
