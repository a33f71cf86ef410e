// Streams.
#include <algorithm>
#include <optional>

#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client/session_sends.hpp"
#include "client_stub/driver/state/copy/copy_rules.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/calls/stream/create_stream.hpp"
#include "client_stub/driver/state/stream/stream.hpp"
#include "client_stub/driver/state/stream/stream_call.hpp"
#include "client_stub/driver/state/stream/stream_wait.hpp"
#include "client_stub/driver/state/copy/posted_uploads.hpp"
#include "client_stub/driver/state/host_memory/host_regions.hpp"
#include "client_stub/driver/state/memory/cached_memory.hpp"
#include "client_stub/driver/state/stream/capture.hpp"
#include "client_stub/driver/state/copy/memory_in_flight.hpp"
#include "client_stub/driver/state/stream/host_callbacks.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {
namespace {

// Requests a notice when the work so far is done. A completed watch covers all work that was sent before it.
CUresult watch(const StreamCall& on) noexcept {
  if (on.state->watched.load(std::memory_order_acquire) > on.state->work.load(std::memory_order_relaxed))
    return CUDA_SUCCESS;
  uint64_t sequence = 0;
  // `watched` is raised before the notice can arrive.
  CUresult error = send::post_watch_stream(*on.caller.session, on.caller.context, {.stream = on.wire_stream}, &sequence,
                                           [&] { raise(on.state->watched, sequence); });
  if (error == CUDA_SUCCESS) on.caller.session->flush();
  return error;
}

bool known_flags(unsigned flags) noexcept { return (flags & ~unsigned(CU_STREAM_NON_BLOCKING)) == 0; }

// Returns the green context of which the context was made, or null.
CUgreenCtx green_of(const ContextState& context) noexcept {
  return context.is_green() ? reinterpret_cast<CUgreenCtx>(context.handle) : nullptr;
}

}  // namespace

CUresult create_stream(const Caller& caller, CUstream* out, unsigned flags, int priority) noexcept {
  if (!out || !known_flags(flags)) return CUDA_ERROR_INVALID_VALUE;
  // Priorities outside the range are clamped (CUDA driver API, cuStreamCreateWithPriority).
  const DeviceFacts& facts = *process()->devices[size_t(caller.state->device)].facts;
  priority = std::max(std::min(priority, int(facts.stream_priority_least)), int(facts.stream_priority_greatest));
  if (flags & CU_STREAM_NON_BLOCKING) caller.server->posted_uploads.stream_beside_begins(caller);
  CUstream stream = nullptr;
  CUresult result = priority == 0 ? forward::cuStreamCreate(caller, &stream, flags)
                                  : forward::cuStreamCreateWithPriority(caller, &stream, flags, priority);
  if (result) return leave(caller, result);
  if (StreamState* state = find_stream(caller.state, reinterpret_cast<uint64_t>(stream))) {
    // In a green context no stream waits for the NULL stream (measured on driver 580).
    state->flags = flags | (caller.state->is_green() ? unsigned(CU_STREAM_NON_BLOCKING) : 0);
    state->priority.store(priority, std::memory_order_relaxed);
  }
  *out = stream;
  return leave(caller, CUDA_SUCCESS);
}

CUresult hand::cuStreamCreateWithPriority(CUstream* out, unsigned int flags, int priority) {
  Caller caller = enter(Needs::context);
  if (CUresult error = argument_first(caller.error, known_flags(flags) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE))
    return error;
  return create_stream(caller, out, flags, priority);
}

CUresult hand::cuStreamCreate(CUstream* out, unsigned int flags) {
  return custom::cuStreamCreateWithPriority(out, flags, 0);
}

// Work that was sent to the stream still runs; only the handle ends.
CUresult hand::cuStreamDestroy_v2(CUstream stream) {
  if (reinterpret_cast<uint64_t>(stream) <= reinterpret_cast<uint64_t>(CU_STREAM_PER_THREAD))
    return CUDA_ERROR_INVALID_HANDLE;
  StreamCall on(stream, false);
  if (on.error) return on.error;
  ServerSession& server = *on.caller.server;
  server.cached_memory.give_back_of_stream(on.wire_stream);
  server.in_flight.let_go();
  // A capture that began in the stream ends with the stream (as measured on driver 580).
  std::optional<Captures::Changing> ending;
  if (Capture capture; on.state->capture.load(std::memory_order_relaxed) != 0 &&
                       server.captures.find(*on.state, capture) && capture.origin == on.wire_stream) {
    ending.emplace(server.captures);
    server.captures.remove(capture);
  }
  return leave(on.caller, forward::cuStreamDestroy_v2(on.caller, stream));
}

CUresult hand::cuStreamQuery(const StreamCall& on, CUstream, bool) {
  if (CUresult error = refuse_captured(on)) return error;
  if (CUresult error = on.caller.server->captures.permit_unsafe_call()) return error;
  if (stream_idle(*on.state)) return finished(on);
  uint64_t work = on.state->work.load(std::memory_order_relaxed);
  // Behind a host function no request waits for the server: the program's thread may hold a lock that the function
  // needs, and the server may not answer before the function has returned.
  if (on.caller.server->host_callbacks.stand_before(on.wire_stream, work)) {
    if (CUresult error = watch(on)) return error;
    on.caller.session->poll();
    return CUDA_ERROR_NOT_READY;
  }
  if (!(on.state->flags & CU_STREAM_NON_BLOCKING)) on.caller.server->posted_uploads.settle(on.caller, work);
  uint64_t now = on.caller.server->progress();
  bool watched = on.state->watched.load(std::memory_order_acquire) > work;
  if (watched && on.state->asked.load(std::memory_order_relaxed) == now) {
    // A polling program may have written a word that a kernel in the NULL stream waits for, so its changes are sent.
    if (on.wire_stream <= wire::kStreamLegacy) on.caller.server->host_regions.push(on.caller);
    return CUDA_ERROR_NOT_READY;
  }
  // The progress since the first check may be that of this stream.
  if (watched && stream_idle(*on.state)) return finished(on);
  CUresult result = forward::cuStreamQuery(on.caller, on.stream());
  if (result == CUDA_SUCCESS) note_stream_done(*on.caller.server, *on.state, work);
  if (result != CUDA_ERROR_NOT_READY) return result;
  on.state->asked.store(now, std::memory_order_relaxed);
  if (CUresult error = watch(on)) return error;
  return CUDA_ERROR_NOT_READY;
}

CUresult hand::cuStreamSynchronize(const StreamCall& on, CUstream, bool) {
  if (in_host_callback()) return CUDA_ERROR_NOT_PERMITTED;
  if (CUresult error = refuse_captured(on)) return error;
  if (CUresult error = on.caller.server->captures.permit_unsafe_call()) return error;
  return wait_for_stream(on);
}

CUresult hand::cuStreamWaitEvent(const StreamCall& on, CUstream, CUevent event, unsigned int flags, bool) {
  EventState* state = find_event(event);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  if ((flags & ~unsigned(CU_EVENT_WAIT_EXTERNAL)) != 0) return CUDA_ERROR_INVALID_VALUE;
  Captures& captures = on.caller.server->captures;
  const bool stream_captures = on.state->capture.load(std::memory_order_relaxed) != 0;
  // An external wait becomes a node that waits for the event's state at the launch (as measured on driver 580).
  const bool external = (flags & CU_EVENT_WAIT_EXTERNAL) != 0;
  if (external && !stream_captures) return CUDA_ERROR_ILLEGAL_STATE;
  uint64_t capture = external ? 0 : state->capture.load(std::memory_order_acquire);
  // Waiting for completed work changes nothing.
  if (capture == 0 && !stream_captures && event_done(*state)) return CUDA_SUCCESS;
  // A foreign event may have been recorded outside of captures since, or never; the server's driver then decides.
  bool unknown = false;
  if (const NewestRecord newest = newest_record(*state); !external && (capture != 0 || stream_captures)) {
    if (!newest.own && capture != 0 && !captures.is_active(capture)) capture = 0;
    unknown = !newest.own && capture == 0;
    const bool recorded = newest.own && newest.sequence != 0;
    if (CUresult error = captures.permit_wait(*on.state, capture, recorded)) return error;
  }
  uint64_t sequence = 0;
  CUresult result = forward::cuStreamWaitEvent(on.caller, on.stream(), event, flags, false, &sequence);
  if (result == CUDA_SUCCESS && capture == 0 && !stream_captures)
    on.caller.server->in_flight.note_join(on.caller, on.wire_stream, sequence);
  // The server's driver also decides the result of a wait for the work of an ended capture.
  unknown |= result == CUDA_SUCCESS && !captures.join(*on.state, capture);
  if (result == CUDA_SUCCESS && (unknown || is_shared(*state))) result = await_verdict(on.caller);
  result = leave(on.caller, result);
  if (unknown && result) captures.invalidate(*on.state);
  return result;
}

// While the stream captures, its number, flags and device are refused, and the capture becomes invalid; its priority
// and its context are answered (as measured on driver 580).
CUresult hand::cuStreamGetId(const StreamCall& on, CUstream, unsigned long long* id, bool) {
  if (CUresult error = refuse_captured(on)) return error;
  *id = on.state->id;
  return CUDA_SUCCESS;
}

CUresult hand::cuStreamGetFlags(const StreamCall& on, CUstream, unsigned int* flags, bool) {
  if (CUresult error = refuse_captured(on)) return error;
  *flags = on.state->flags;
  return CUDA_SUCCESS;
}

CUresult hand::cuStreamGetPriority(const StreamCall& on, CUstream, int* priority, bool) {
  *priority = on.state->priority.load(std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

namespace {

// Returns whether the attribute of launches is an attribute of streams, too (cuda.h, CU_STREAM_ATTRIBUTE_*).
bool is_of_streams(CUstreamAttrID attribute) {
  switch (attribute) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN: return true;
    default: return false;
  }
}

}  // namespace

// Only the server's driver knows the valid values, so the call waits for its answer, except for a priority in the
// device's range.
CUresult hand::cuStreamSetAttribute(const StreamCall& on, CUstream stream, CUstreamAttrID attribute,
                                    const CUstreamAttrValue* value, bool per_thread) {
  if (!value || !is_of_streams(attribute)) return CUDA_ERROR_INVALID_VALUE;
  const DeviceFacts& facts = *process()->devices[size_t(on.caller.state->device)].facts;
  bool of_priority = attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY;
  bool plain = of_priority && value->priority <= facts.stream_priority_least &&
               value->priority >= facts.stream_priority_greatest;
  CUresult result = forward::cuStreamSetAttribute(on.caller, stream, attribute, value, per_thread);
  if (!result && plain) on.state->priority.store(value->priority, std::memory_order_relaxed);
  if (result || plain) return result;
  result = leave(on.caller, await_verdict(on.caller));
  // The driver may have stored another priority than the requested one.
  CUstreamAttrValue kept;
  if (!result && of_priority && !forward::cuStreamGetAttribute(on.caller, stream, attribute, &kept, per_thread))
    on.state->priority.store(kept.priority, std::memory_order_relaxed);
  return result;
}

CUresult hand::cuStreamCopyAttributes(CUstream to, CUstream from, bool per_thread) {
  StreamCall on(to, per_thread), source(from, per_thread);
  if (on.error || source.error) return on.error ? on.error : source.error;
  CUresult result = forward::cuStreamCopyAttributes(on.caller, to, from, per_thread);
  if (!result)
    on.state->priority.store(source.state->priority.load(std::memory_order_relaxed), std::memory_order_relaxed);
  return leave(on.caller, result);
}

CUresult hand::cuStreamGetDevice(const StreamCall& on, CUstream, CUdevice* device, bool) {
  if (CUresult error = refuse_captured(on)) return error;
  *device = on.caller.state->device;
  return CUDA_SUCCESS;
}

CUresult hand::cuStreamGetCtx(const StreamCall& on, CUstream, CUcontext* context, bool) {
  *context = as_cuda(on.caller.state);
  return CUDA_SUCCESS;
}

// Stores the primary context and the green context of a green context's stream. Either output may be null (as measured
// on driver 580).
CUresult hand::cuStreamGetCtx_v2(CUstream stream, CUcontext* context, CUgreenCtx* green, bool per_thread) {
  const StreamCall on(stream, per_thread);
  const bool asks = context || green;
  if (CUresult error = argument_first(on.error, asks ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE)) return error;
  if (context) *context = as_cuda(on.caller.state->base);
  if (green) *green = green_of(*on.caller.state);
  return CUDA_SUCCESS;
}

CUresult hand::cuStreamGetGreenCtx(const StreamCall& on, CUstream, CUgreenCtx* green) {
  *green = green_of(*on.caller.state);
  return CUDA_SUCCESS;
}

}  // namespace gpuwire::client
