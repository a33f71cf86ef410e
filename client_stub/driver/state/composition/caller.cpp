#include "client_stub/driver/state/call/caller.hpp"

#include "client/forward.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/handle/handle_table.hpp"
#include "client_stub/driver/process/process.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/host_memory/host_regions.hpp"
#include "client_stub/driver/state/host_memory/pinned_pointers.hpp"
#include "client_stub/driver/state/managed_memory/managed_memory.hpp"
#include "client_stub/driver/state/memory/address_map.hpp"
#include "client_stub/driver/state/memory/cached_memory.hpp"
#include "client_stub/driver/state/module/module_state.hpp"
#include "client_stub/driver/state/module/prefetched_images.hpp"
#include "client_stub/driver/state/stream/capture.hpp"
#include "client_stub/session/call.hpp"
#include "schema/api_stream.capnp.h"
#include "schema/session.capnp.h"

namespace gpuwire::client {

Caller enter(Needs needs) noexcept {
  Caller caller;
  Process* owner = process();
  if (!owner) [[unlikely]] {
    if (needs != Needs::nothing) caller.error = absent_process();
    return caller;
  }
  ContextState* context = t_context;
  caller.server = context ? context->server : owner->server;
  caller.session = &caller.server->connection();
  if (needs == Needs::nothing) return caller;
  caller.error = caller.session->state();
  if (caller.error) [[unlikely]]
    return caller;
  if (needs != Needs::initialised) {
    if (!context) {
      if (needs != Needs::context_if_any) caller.error = CUDA_ERROR_INVALID_CONTEXT;
      return caller;
    }
    caller.error = health_at_entry(*context);
    if (caller.error && !(needs == Needs::living_context && is_sticky(caller.error))) [[unlikely]]
      return caller;
    caller.error = CUDA_SUCCESS;
  } else if (!context || !context->alive.load(std::memory_order_relaxed)) {
    return caller;
  }
  caller.state = context;
  caller.context_handle = context->base->handle;
  caller.context = uint32_t(context->handle);
  return caller;
}

namespace {

// Returns the context that the object belongs to; null if it belongs to none, or the handle is unknown.
ContextState* context_owning(wire::HandleKind kind, uint64_t handle) noexcept {
  auto of = [](const auto* state) { return state ? state->context : nullptr; };
  switch (kind) {
    case wire::HandleKind::stream: return of(handles().find<StreamState>(kind, handle));
    case wire::HandleKind::module: return of(handles().find<ModuleState>(kind, handle));
    case wire::HandleKind::function: return of(handles().find<FunctionState>(kind, handle));
    default: return nullptr;
  }
}

Caller enter_own(ContextState* context) noexcept { return context ? enter_context(*context) : enter(Needs::context); }

}  // namespace

Caller enter_context_of(wire::HandleKind kind, uint64_t handle) noexcept {
  return enter_own(t_context ? nullptr : context_owning(kind, handle));
}

Caller enter_context_at(uint64_t address) noexcept {
  ContextState* context = nullptr;
  if (!t_context) {
    const auto range = allocation_at(address);
    if (range) context = find_context(reinterpret_cast<CUcontext>(range->own_context()));
  }
  return enter_own(context);
}

CUresult argument_first(CUresult entering, CUresult argument) noexcept {
  const bool later = is_sticky(entering) || entering == CUDA_ERROR_INVALID_CONTEXT;
  return entering && !(argument && later) ? entering : argument;
}

ContextState* owner(const Caller& caller) noexcept { return caller.state ? caller.state->base : nullptr; }

Caller enter_context(ContextState& context) noexcept {
  Caller caller;
  if (!process()) {
    caller.error = absent_process();
    return caller;
  }
  caller.server = context.server;
  caller.session = &caller.server->connection();
  caller.error = caller.session->state();
  if (caller.error == CUDA_SUCCESS) caller.error = health_at_entry(context);
  if (caller.error) return caller;
  caller.state = &context;
  caller.context_handle = context.base->handle;
  caller.context = uint32_t(context.handle);
  return caller;
}

CUresult leave(const Caller& caller, CUresult result) noexcept {
  ContextState* context = caller.state;
  if (!context) return result;
  if (result == CUDA_SUCCESS) [[likely]] {
    if (context->deferred.load(std::memory_order_relaxed) == 0) [[likely]]
      return result;
    return CUresult(context->deferred.exchange(0, std::memory_order_relaxed));
  }
  if (is_sticky(result)) note_fault(*context, result);
  return result;
}

int32_t server_device(CUdevice device, CUresult& error) noexcept {
  Process* owner = process();
  const Device* found = owner ? owner->device(device) : nullptr;
  error = found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  return found ? found->server_ordinal : -1;
}

uint64_t create_handle(const Caller& caller, wire::HandleKind kind) noexcept {
  if (kind == wire::HandleKind::stream) return create_stream_handle(caller.server, caller.state);
  if (kind == wire::HandleKind::event) return create_event_handle(caller.server, owner(caller));
  return handles().create(kind, caller.server);
}

bool known_handle(wire::HandleKind kind, uint64_t handle) noexcept { return handles().known(kind, handle); }

// Handles of contexts are not removed: the program may still query destroyed contexts.
void forget_handle(wire::HandleKind kind, uint64_t handle) noexcept {
  if (kind == wire::HandleKind::context) return;
  if (kind == wire::HandleKind::stream) {
    forget_stream_handle(handle);
  } else if (kind == wire::HandleKind::event) {
    forget_event_handle(handle);
  } else {
    handles().forget(kind, handle);
  }
}

namespace {

// The calling thread's own stream of its current context. The server does not have it until announce_streams().
uint64_t own_stream(const Caller& caller, CUresult& error) noexcept {
  ThreadState* thread = thread_state();
  if (!thread || !caller.state) {
    error = thread ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_OUT_OF_MEMORY;
    return 0;
  }
  for (auto& own : thread->own_streams) {
    if (own.context != caller.state) continue;
    if (known_handle(wire::HandleKind::stream, own.stream)) return own.stream;
    std::swap(own, thread->own_streams.back());
    thread->own_streams.pop_back();
    break;
  }
  const uint64_t handle = create_stream_handle(caller.server, caller.state);
  if (!handle) {
    error = CUDA_ERROR_OUT_OF_MEMORY;
    return 0;
  }
  try {
    thread->own_streams.push_back({caller.state, handle, false});  // it ends with the thread
  } catch (...) {
    forget_stream_handle(handle);
    error = CUDA_ERROR_OUT_OF_MEMORY;
    return 0;
  }
  t_unannounced = true;
  return handle;
}

// Creates the thread's own streams of this context at the server.
CUresult announce_streams(const Caller& caller) noexcept {
  bool others = false;
  for (auto& own : thread_state()->own_streams) {
    if (own.announced) continue;
    if (own.context != caller.state || !known_handle(wire::HandleKind::stream, own.stream)) {
      others = true;
      continue;
    }
    CUresult error =
        post<schema::CuStreamCreateParams>(*caller.session, forward_ordinal::cuStreamCreate, caller.context,
                                           message_words<schema::CuStreamCreateParams>(), [&](auto params) {
                                             params.setPhStream(own.stream);
                                             params.setFlags(CU_STREAM_DEFAULT);
                                           });
    if (error) return error;
    own.announced = true;
  }
  t_unannounced = others;
  return CUDA_SUCCESS;
}

}  // namespace

uint64_t resolve_stream(const Caller& caller, CUstream stream, bool per_thread, CUresult& error) noexcept {
  error = CUDA_SUCCESS;
  auto handle = reinterpret_cast<uint64_t>(stream);
  if (handle > uint64_t(2)) [[likely]] {
    if (!handles().known(wire::HandleKind::stream, handle)) {
      error = CUDA_ERROR_INVALID_HANDLE;
    } else if (caller.state && caller.server->captures.any())
        [[unlikely]] {  // of whatever context: the stream may be another's
      error = caller.server->captures.permit_work(*caller.state, handle);
    }
    return handle;
  }
  if (stream == CU_STREAM_PER_THREAD || (stream == nullptr && per_thread)) return own_stream(caller, error);
  if (caller.state && caller.state->blocking_captures.load(std::memory_order_relaxed) != 0) [[unlikely]] {
    error = caller.server->captures.permit_work(*caller.state, handle);
  }
  return handle;
}

CUresult before_work(const Caller& caller) noexcept {
  ServerSession& server = *caller.server;
  server.managed_memory.hand_over();
  server.host_regions.push(caller);
  return t_unannounced ? announce_streams(caller) : CUDA_SUCCESS;
}

void note_address(const Caller& caller, uint64_t address) noexcept {
  if (!caller.for_graph_copies) caller.server->pinned_pointers.scan_address(address);
  caller.server->cached_memory.scan_address(address);
}

void note_addresses_in(const Caller& caller, std::span<const std::byte> data) noexcept {
  if (!caller.for_graph_copies) caller.server->pinned_pointers.scan_words(data);
  caller.server->cached_memory.scan_words(data);
}

void take_profiled_allocations(const Caller& caller) noexcept {
  if (caller.server->pinned_pointers.wanted()) [[unlikely]]
    caller.server->host_regions.push(caller);
}

void give_back_cached_memory(const Caller& caller) noexcept { caller.server->cached_memory.give_back(caller); }

bool free_cached_memory(const Caller& caller) noexcept {
  const bool kept = caller.server->cached_memory.free_all(caller);
  return caller.server->prefetched_images.give_back(caller) || kept;
}

void hand_over_event(uint64_t event) noexcept {
  auto* state = handles().find<EventState>(wire::HandleKind::event, event);
  // The mark precedes the frame, so a thread that learns of the server's use of the event finds it marked.
  if (state) state->foreign.store(true, std::memory_order_release);
}

void note_foreign_records(const Caller& caller, uint64_t sequence) noexcept {
  raise(caller.server->foreign_records, sequence);
}

void note_stream_work(const Caller& caller, uint64_t wire_stream, uint64_t sequence, bool writes_host) noexcept {
  ContextState* context = caller.state;
  if (!context) return;
  StreamState* stream = find_stream(context, wire_stream);
  if (writes_host) {
    const bool beside = !stream || (stream->flags & CU_STREAM_NON_BLOCKING);
    raise(beside ? context->host_writes_beside : context->host_writes, sequence);
  }
  if (stream) {
    if (stream->context) context = stream->context;
    raise(stream->work, sequence);
    if (!(stream->flags & CU_STREAM_NON_BLOCKING) && stream != &context->legacy) {
      raise(context->legacy.work, sequence);
      if (!context->blocking_work.load(std::memory_order_relaxed)) [[unlikely]]
        context->blocking_work.store(true, std::memory_order_relaxed);
    }
  }
  raise(context->work, sequence);
  // Synchronising a primary context waits for its green ones.
  if (context->is_green()) [[unlikely]]
    raise(context->base->work, sequence);
  caller.server->managed_memory.note_work();
}

}  // namespace gpuwire::client
