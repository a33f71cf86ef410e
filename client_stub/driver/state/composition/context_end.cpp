// The end of a context, and of the client's state for it.
#include <new>
#include <vector>

#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/copy/posted_uploads.hpp"
#include "client_stub/driver/state/copy/shared_staging.hpp"
#include "client_stub/driver/state/handle/handle_table.hpp"
#include "client_stub/driver/state/host_memory/host_regions.hpp"
#include "client_stub/driver/state/host_memory/pinned_pointers.hpp"
#include "client_stub/driver/state/managed_memory/managed.hpp"
#include "client_stub/driver/state/memory/address_map.hpp"
#include "client_stub/driver/state/memory/cached_memory.hpp"
#include "client_stub/driver/state/module/prefetched_images.hpp"
#include "client_stub/driver/process/process.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/stream/capture.hpp"
#include "protocol/cuda_abi/private_tables.hpp"

namespace gpuwire::client {

void forget_memory_of(const ContextState& context) noexcept {
  address_map().take_all(
      [&](const AddressRange& range) { return range.context == context.handle && !is_host(range.kind); },
      release_range);
  forget_managed_of(context);
}

// Ends the context's registrations. The program keeps its pinned allocations and may still read and free them; the
// device cannot reach them until it gets a pointer again. Precondition: the context still exists at the server.
void forget_host_memory_of(const ContextState& context) noexcept try {
  if (!process()) return;
  ServerSession& server = *context.server;
  Caller caller = server.own_caller();
  caller.context = uint32_t(context.handle);
  server.shared_staging.forget(caller, context.handle);
  std::vector<AddressRange> allocated;
  auto registered = [&](const AddressRange& range) {
    if (range.context != context.handle || !is_host(range.kind)) return false;
    if (range.kind == RangeKind::host_allocated) allocated.push_back(range);
    return range.kind == RangeKind::host_registered;
  };
  address_map().take_all(registered, [&](const AddressRange& range) { server.host_regions.end(caller, range.base); });
  for (const AddressRange& range : allocated) {
    server.host_regions.end(caller, range.base);
    server.pinned_pointers.add(range.base, range.bytes, PinnedPointers::Around::pinned_memory);
  }
} catch (const std::bad_alloc&) {
  // While a registration remains, a second registration of the memory is refused.
}

void prepare_end(ContextState& context) noexcept {
  // While the storage is released, callbacks of libraries may still call the driver in the context.
  cuda_abi::context_local_storage().drop_context(as_cuda(&context));
  context.server->cached_memory.give_back_of(context);
  context.server->prefetched_images.forget(context);
}

void end_context(ContextState& context) noexcept {
  context.alive.store(false, std::memory_order_release);
  context.server->cached_memory.forget(context);
  forget_modules_of(context);
  forget_memory_of(context);
  forget_host_memory_of(context);
  handles().for_each(wire::HandleKind::event, [&](uint64_t handle, void* object) {
    auto* event = static_cast<EventState*>(object);
    if (event && event->context == &context) forget_event_handle(handle);
  });
  handles().for_each(wire::HandleKind::stream, [&](uint64_t handle, void* object) {
    auto* stream = static_cast<StreamState*>(object);
    if (stream && stream->context == &context) forget_stream_handle(handle);
  });
  context.server->captures.remove_of(context);
  context.server->posted_uploads.context_ends();
}

}  // namespace gpuwire::client
