// Events. The client counts their records, so most queries of events need no request.
#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client/session_sends.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/copy/copy_rules.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/process/process.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/stream/event_call.hpp"
#include "client_stub/driver/state/stream/stream_call.hpp"
#include "client_stub/driver/state/copy/posted_uploads.hpp"
#include "client_stub/driver/state/host_memory/host_regions.hpp"
#include "client_stub/driver/state/stream/capture.hpp"
#include "schema/session.capnp.h"
#include "client_stub/driver/state/stream/host_callbacks.hpp"

namespace gpuwire::client {
namespace {

constexpr unsigned kEventFlagsKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;

// Returns the result of a query of a completed event: the error of its work once, then success.
CUresult finished(const EventCall& on) noexcept {
  int32_t failed = on.state->failed.load(std::memory_order_relaxed);
  if (failed) failed = on.state->failed.exchange(0, std::memory_order_relaxed);
  return leave(on.caller, CUresult(failed));
}

// Notes that the record is done, before the program learns it.
void settle(const EventCall& on, uint64_t record) noexcept {
  note_event_done(*on.state, record);
  on.caller.server->note_progress();
}

// Requests a notice when this record of the event is done. The frame leaves with later frames, or by a flush.
CUresult watch(const EventCall& on, CUevent event, uint64_t record) noexcept {
  if (on.state->watched.load(std::memory_order_relaxed) >= record) return CUDA_SUCCESS;
  CUresult error = send::post_watch_event(*on.caller.session, on.caller.context,
                                          {.event = reinterpret_cast<uint64_t>(event), .record = record});
  // Release: a thread that sees the record as watched also sees the value that watch_from_beginning() stored in
  // `asked`.
  if (error == CUDA_SUCCESS) raise(on.state->watched, record);
  return error;
}

// Watches the new record of an event that the program polls, so that its queries need no request. `seen` is
// ServerSession::progress() before the record, after which the program has learned nothing about the record.
void watch_from_beginning(CUevent event, uint64_t record, uint64_t seen) noexcept {
  EventCall on(event);
  if (on.error) return;
  on.state->asked.store(seen, std::memory_order_relaxed);
  // If the watch fails, the program's query sends a request.
  static_cast<void>(watch(on, event, record));
}

// Returns the event's state, or null if the event and the stream belong to different contexts (CUDA driver API,
// cuEventRecord). Green contexts count as their primary context.
EventState* recordable(const StreamCall& on, CUevent event) noexcept {
  EventState* state = find_event(event);
  return state && state->context == owner(on.caller) ? state : nullptr;
}

// Returns the capture of the event's newest record, 0 for none. A launch of a graph that records the event replaces
// that record (as measured on driver 580). Once the capture has ended, only the server knows whether there was such a
// launch, so the result is 0 if there may have been one.
uint64_t captured_in(ServerSession& server, const EventState& event) noexcept {
  const uint64_t capture = event.capture.load(std::memory_order_relaxed);
  return capture == 0 || newest_record(event).own || server.captures.is_active(capture) ? capture : 0;
}

// Refuses a query of an event whose newest record is in a capture, and invalidates the capture.
CUresult refuse_captured(const EventCall& on) noexcept {
  const uint64_t capture = captured_in(*on.caller.server, *on.state);
  if (capture == 0) [[likely]]
    return CUDA_SUCCESS;
  // The error is another one if the capture has ended or is invalid already (as measured on driver 580).
  return on.caller.server->captures.invalidate(capture) ? CUDA_ERROR_CAPTURED_EVENT : CUDA_ERROR_INVALID_VALUE;
}

CUresult record(const StreamCall& on, CUevent event) {
  EventState* state = recordable(on, event);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  const bool polled = state->polled.exchange(false, std::memory_order_relaxed);
  const uint64_t seen = on.caller.server->progress();
  uint64_t sequence = 0;
  CUresult result = forward::cuEventRecord(on.caller, event, on.stream(), false, &sequence);
  const uint64_t capture = on.state->capture.load(std::memory_order_relaxed);
  if (result == CUDA_SUCCESS) note_record(on.caller, *state, on.wire_stream, capture, sequence);
  if (result == CUDA_SUCCESS && is_shared(*state)) result = await_verdict(on.caller);
  else if (result == CUDA_SUCCESS && polled && capture == 0) watch_from_beginning(event, sequence, seen);
  return result;
}

// Adds a node to the captured graph that records the event at the launch; until then the event is unchanged.
CUresult record_in_graph(const StreamCall& on, CUevent event) {
  if (!recordable(on, event)) return CUDA_ERROR_INVALID_HANDLE;
  // As measured on driver 580.
  if (on.state->capture.load(std::memory_order_relaxed) == 0) return CUDA_ERROR_ILLEGAL_STATE;
  return forward::cuEventRecordWithFlags(on.caller, event, on.stream(), CU_EVENT_RECORD_EXTERNAL, false);
}

// Answers the query of an event that is watched. The polling thread reads the server's notices itself, because the
// session's own thread would read them later.
CUresult read_watched(const EventCall& on) noexcept {
  on.caller.session->poll();
  return event_done(*on.state) ? finished(on) : CUDA_ERROR_NOT_READY;
}

}  // namespace

CUresult hand::cuEventCreate(const Caller& caller, CUevent* out, unsigned int flags) {
  bool shared_with_timing = (flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING);
  if (!out || (flags & ~kEventFlagsKnown) != 0 || shared_with_timing) return CUDA_ERROR_INVALID_VALUE;
  CUevent event = nullptr;
  CUresult result = forward::cuEventCreate(caller, &event, flags);
  if (result == CUDA_SUCCESS) {
    if (EventState* state = find_event(event)) state->flags = flags;
    *out = event;
  }
  return result;
}

CUresult hand::cuEventDestroy_v2(const EventCall& on, CUevent event) {
  return forward::cuEventDestroy_v2(on.caller, event);
}

CUresult hand::cuIpcOpenEventHandle(const Caller& caller, CUevent* out, CUipcEventHandle handle) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  CUevent event = nullptr;
  CUresult result = forward::cuIpcOpenEventHandle(caller, &event, handle);
  if (result == CUDA_SUCCESS) {
    if (EventState* state = find_event(event)) state->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    *out = event;
  }
  return result;
}

CUresult hand::cuEventRecord(const StreamCall& on, CUevent event, CUstream, bool) { return record(on, event); }

CUresult hand::cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags, bool per_thread) {
  if ((flags & ~unsigned(CU_EVENT_RECORD_EXTERNAL)) != 0) {
    const CUresult fault = enter(Needs::context).error;
    return is_sticky(fault) ? fault : CUDA_ERROR_INVALID_VALUE;
  }
  const StreamCall on(stream, per_thread);
  if (on.error) return on.error;
  return leave(on.caller, flags == 0 ? record(on, event) : record_in_graph(on, event));
}

// Records all work of a context. The record is done when the context is known to be idle, or when a watch reports it.
CUresult hand::cuCtxRecordEvent(CUcontext handle, CUevent event) {
  // NULL does not stand for the current context (as measured on driver 580).
  if (!handle) return CUDA_ERROR_INVALID_CONTEXT;
  CUresult error;
  ContextState* context = context_or_current(handle, error);
  if (!context) return error;
  Caller caller = enter_context(*context);
  if (caller.error) return caller.error;
  EventState* state = find_event(event);
  if (!state || state->context != context->base) return CUDA_ERROR_INVALID_HANDLE;
  uint64_t sequence = 0;
  CUresult result = forward::cuCtxRecordEvent(caller, handle, event, &sequence);
  if (result == CUDA_SUCCESS) note_record(caller, *state, kNoStream, 0, sequence);
  return leave(caller, result);
}

CUresult hand::cuCtxWaitEvent(CUcontext handle, CUevent event) {
  // NULL does not stand for the current context (as measured on driver 580).
  if (!handle) return CUDA_ERROR_INVALID_CONTEXT;
  CUresult error;
  ContextState* context = context_or_current(handle, error);
  if (!context) return error;
  Caller caller = enter_context(*context);
  if (caller.error) return caller.error;
  const EventState* state = find_event(event);
  if (!state) return CUDA_ERROR_INVALID_HANDLE;
  if (event_done(*state)) return leave(caller, CUDA_SUCCESS);
  uint64_t sequence = 0;
  CUresult result = forward::cuCtxWaitEvent(caller, handle, event, &sequence);
  if (result == CUDA_SUCCESS) note_stream_work(caller, wire::kStreamNull, sequence);
  return leave(caller, result);
}

CUresult hand::cuEventQuery(const EventCall& on, CUevent event) {
  if (CUresult error = refuse_captured(on)) return error;
  if (CUresult error = on.caller.server->captures.permit_unsafe_call()) return error;
  const auto [record, own] = newest_record(*on.state);
  const bool watched = on.state->watched.load(std::memory_order_acquire) >= record;
  const bool done = event_done(*on.state);
  if (own && record != 0 && (watched || !done) && !on.state->polled.load(std::memory_order_relaxed)) {
    on.state->polled.store(true, std::memory_order_relaxed);
    // The flush sends the record.
    if (watched && !done) on.caller.session->flush();
  }
  if (done) return finished(on);
  if (is_shared(*on.state)) return forward::cuEventQuery(on.caller, event);
  // Behind a host function no request waits for the server: the program's thread may hold a lock that the function
  // needs, and the server may not answer before the function has returned.
  const uint64_t stream = on.state->stream.load(std::memory_order_relaxed);
  if (own && on.caller.server->host_callbacks.stand_before(stream, record)) {
    if (CUresult error = watch(on, event, record)) return error;
    on.caller.session->flush();
    return read_watched(on);
  }
  on.caller.server->posted_uploads.settle(on.caller, record);
  uint64_t now = on.caller.server->progress();
  if (watched) {
    if (on.state->asked.load(std::memory_order_relaxed) == now) return read_watched(on);
    // The progress since the first check may be that of this record.
    if (event_done(*on.state)) return finished(on);
  }
  CUresult result = forward::cuEventQuery(on.caller, event);
  if (result == CUDA_SUCCESS) settle(on, record);
  if (result != CUDA_ERROR_NOT_READY) return result;
  on.state->asked.store(now, std::memory_order_relaxed);
  if (CUresult error = watch(on, event, record)) return error;
  on.caller.session->flush();
  return CUDA_ERROR_NOT_READY;
}

CUresult hand::cuEventSynchronize(const EventCall& on, CUevent event) {
  if (in_host_callback()) return CUDA_ERROR_NOT_PERMITTED;
  if (CUresult error = refuse_captured(on)) return error;
  if (CUresult error = on.caller.server->captures.permit_unsafe_call()) return error;
  if (event_done(*on.state)) return finished(on);
  const uint64_t record = newest_record(*on.state).sequence;
  // A kernel before the record may wait for a write of the program, so the program's changes are sent first.
  on.caller.server->host_regions.push(on.caller);
  CUresult result = forward::cuEventSynchronize(on.caller, event);
  if (result == CUDA_SUCCESS) settle(on, record);
  return result;
}

CUresult hand::cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  EventCall from(start);
  // If the output is missing as well, this call returns another error than others do (as measured on driver 580).
  if (from.error) return argument_first(from.error, milliseconds ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
  EventCall to(end);
  if (to.error) return to.error;
  for (const EventState* state : {from.state, to.state}) {
    bool timed = !(state->flags & CU_EVENT_DISABLE_TIMING) && newest_record(*state).sequence != 0;
    if (!timed) return CUDA_ERROR_INVALID_HANDLE;
  }
  if (from.state->context != to.state->context) return CUDA_ERROR_INVALID_HANDLE;
  // The events are checked before the output (as measured on driver 580).
  if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
  for (const EventState* state : {from.state, to.state}) {
    if (!event_done(*state)) to.caller.server->posted_uploads.settle(to.caller, newest_record(*state).sequence);
  }
  return leave(to.caller, forward::cuEventElapsedTime_v2(to.caller, milliseconds, start, end));
}

}  // namespace gpuwire::client
