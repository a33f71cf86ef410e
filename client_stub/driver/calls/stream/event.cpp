// Events: their records are counted, so that most questions about them need no server.
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

CUresult finished(const EventCall& on) noexcept {
  int32_t failed = on.state->failed.load(std::memory_order_relaxed);
  if (failed) failed = on.state->failed.exchange(0, std::memory_order_relaxed);
  return leave(on.caller, CUresult(failed));
}

// The program learns that this record is done.
void settle(const EventCall& on, uint64_t record) noexcept {
  note_event_done(*on.state, record);
  on.caller.server->note_progress();
}

// Asks for a notice when this record of the event is done. The frame leaves with those that follow, or by a flush.
CUresult watch(const EventCall& on, CUevent event, uint64_t record) noexcept {
  if (on.state->watched.load(std::memory_order_relaxed) >= record) return CUDA_SUCCESS;
  CUresult error = send::post_watch_event(*on.caller.session, on.caller.context,
                                          {.event = reinterpret_cast<uint64_t>(event), .record = record});
  // Release: a thread that sees that the record is watched from its beginning also sees the `asked` of then.
  if (error == CUDA_SUCCESS) raise(on.state->watched, record);
  return error;
}

// The program asks for the event again and again: its new record is watched, so that no question has to travel. `seen`:
// ServerSession::progress() before the record, which the program has learned nothing about since.
void watch_from_beginning(CUevent event, uint64_t record, uint64_t seen) noexcept {
  EventCall on(event);
  if (on.error) return;
  on.state->asked.store(seen, std::memory_order_relaxed);
  static_cast<void>(watch(on, event, record));  // else the question travels
}

// An event and the stream it is recorded in belong to one context (CUDA driver API, cuEventRecord), green ones counting
// as their primary. Null: it does not.
EventState* recordable(const StreamCall& on, CUevent event) noexcept {
  EventState* state = find_event(event);
  return state && state->context == owner(on.caller) ? state : nullptr;
}

// The capture that the event's newest record was in, 0: none. The launch of a graph that records the event ends that
// (as measured on driver 580): whether there was one, the server is asked, once the capture is over.
uint64_t captured_in(ServerSession& server, const EventState& event) noexcept {
  const uint64_t capture = event.capture.load(std::memory_order_relaxed);
  return capture == 0 || newest_record(event).own || server.captures.is_active(capture) ? capture : 0;
}

// A question about an event of a capture is wrong, and the capture is invalid then.
CUresult refuse_captured(const EventCall& on) noexcept {
  const uint64_t capture = captured_in(*on.caller.server, *on.state);
  if (capture == 0) [[likely]]
    return CUDA_SUCCESS;
  // For a capture that is over or invalid (as measured on driver 580).
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

// Becomes a node that records the event when its graph is launched; until then the event is unchanged.
CUresult record_in_graph(const StreamCall& on, CUevent event) {
  if (!recordable(on, event)) return CUDA_ERROR_INVALID_HANDLE;
  // As measured on driver 580.
  if (on.state->capture.load(std::memory_order_relaxed) == 0) return CUDA_ERROR_ILLEGAL_STATE;
  return forward::cuEventRecordWithFlags(on.caller, event, on.stream(), CU_EVENT_RECORD_EXTERNAL, false);
}

// Answers the query for an event that is watched. A polling program's own thread reads the server's notices: the
// session's own thread would be later.
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

// Records all work of a context; known to be done with the context, or by a watch.
CUresult hand::cuCtxRecordEvent(CUcontext handle, CUevent event) {
  if (!handle) return CUDA_ERROR_INVALID_CONTEXT;  // not the current one (as measured on driver 580)
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
  if (!handle) return CUDA_ERROR_INVALID_CONTEXT;  // not the current one (as measured on driver 580)
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
    if (watched && !done) on.caller.session->flush();  // the record is on its way from here on
  }
  if (done) return finished(on);
  if (is_shared(*on.state)) return forward::cuEventQuery(on.caller, event);
  // The caller may hold a lock that the function needs, and the server be blocked until the function has returned.
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
    // The progress may be this record's own, which came since it was looked at.
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
  on.caller.server->host_regions.push(on.caller);  // a kernel may be waiting for a write of the program
  CUresult result = forward::cuEventSynchronize(on.caller, event);
  if (result == CUDA_SUCCESS) settle(on, record);
  return result;
}

CUresult hand::cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  EventCall from(start);
  // Of two mistakes the one with the time is another error than elsewhere (as measured on driver 580).
  if (from.error) return argument_first(from.error, milliseconds ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
  EventCall to(end);
  if (to.error) return to.error;
  for (const EventState* state : {from.state, to.state}) {
    bool timed = !(state->flags & CU_EVENT_DISABLE_TIMING) && newest_record(*state).sequence != 0;
    if (!timed) return CUDA_ERROR_INVALID_HANDLE;
  }
  if (from.state->context != to.state->context) return CUDA_ERROR_INVALID_HANDLE;
  if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;  // the events come first, as measured on driver 580
  for (const EventState* state : {from.state, to.state}) {
    if (!event_done(*state)) to.caller.server->posted_uploads.settle(to.caller, newest_record(*state).sequence);
  }
  return leave(to.caller, forward::cuEventElapsedTime_v2(to.caller, milliseconds, start, end));
}

}  // namespace gpuwire::client
