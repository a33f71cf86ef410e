// Events: their records are counted, so that most questions about them need no server.
#include "client/forward.hpp"
#include "client/hand.hpp"
#include "client/session_sends.hpp"
#include "client_stub/driver/call/caller.hpp"
#include "client_stub/driver/copy/copy_rules.hpp"
#include "client_stub/driver/session/process.hpp"
#include "client_stub/driver/session/server_session.hpp"
#include "client_stub/driver/stream/stream_call.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {
namespace {

constexpr unsigned kEventFlagsKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;

struct EventCall {
  Caller caller;
  EventState* state = nullptr;
  CUresult error = CUDA_SUCCESS;

  explicit EventCall(CUevent event) noexcept {
    state = find_event(event);
    if (!state || !state->context) {
      error = process() ? CUDA_ERROR_INVALID_HANDLE : absent_process();
      return;
    }
    caller = enter_context(*state->context);
    error = caller.error;
  }
};

CUresult finished(const EventCall& on) noexcept {
  int32_t failed = on.state->failed.load(std::memory_order_relaxed);
  if (failed) failed = on.state->failed.exchange(0, std::memory_order_relaxed);
  return leave(on.caller, CUresult(failed));
}

// Not a stream: for records that a NULL stream's progress says nothing about.
constexpr uint64_t kNoStream = ~uint64_t(0);

void note_record(EventState& event, uint64_t wire_stream, uint64_t capture, uint64_t sequence) noexcept {
  event.stream.store(wire_stream, std::memory_order_relaxed);
  event.capture.store(capture, std::memory_order_relaxed);
  event.failed.store(0, std::memory_order_relaxed);
  // Release: who sees the record also sees its stream. Partner: event_done().
  event.record.store(sequence, std::memory_order_release);
}

// The program learns that this record is done.
void settle(const EventCall& on, uint64_t record) noexcept {
  raise(on.state->done, record);
  on.caller.server->note_progress();
}

// Asks for a notice when this record of the event is done. The frame leaves with those that follow, or by a flush.
CUresult watch(const EventCall& on, CUevent event, uint64_t record) noexcept {
  if (on.state->watched.load(std::memory_order_relaxed) >= record) return CUDA_SUCCESS;
  CUresult error = send::post_watch_event(*on.caller.session, on.caller.context,
                                          {.event = reinterpret_cast<uint64_t>(event), .record = record});
  // Release: who sees that the record is watched from its beginning also sees the `asked` of then.
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

template <class Forward>
CUresult record(CUevent event, CUstream stream, bool per_thread, Forward&& forward_call) {
  StreamCall on(stream, per_thread);
  if (on.error) return on.error;
  EventState* state = find_event(event);
  // An event and the stream it is recorded in belong to one context (CUDA driver API, cuEventRecord), green ones
  // counting as their primary.
  if (!state || state->context != owner(on.caller)) return CUDA_ERROR_INVALID_HANDLE;
  const bool polled = state->polled.exchange(false, std::memory_order_relaxed);
  const uint64_t seen = on.caller.server->progress();
  uint64_t sequence = 0;
  CUresult result = forward_call(on, sequence);
  bool null_of_green = on.wire_stream <= wire::kStreamLegacy && on.caller.state->is_green();
  uint64_t stream_noted = null_of_green ? kNoStream : on.wire_stream;
  const uint64_t capture = on.state->capture.load(std::memory_order_relaxed);
  if (result == CUDA_SUCCESS) note_record(*state, stream_noted, capture, sequence);
  if (result == CUDA_SUCCESS && is_shared(*state)) result = await_verdict(on.caller);
  else if (result == CUDA_SUCCESS && polled && capture == 0) watch_from_beginning(event, sequence, seen);
  return leave(on.caller, result);
}

// Answers the question for an event that is watched. A program that goes on asking reads what the server tells itself:
// the session's own thread would be later.
CUresult read_watched(const EventCall& on) noexcept {
  on.caller.session->look();
  return event_done(*on.state) ? finished(on) : CUDA_ERROR_NOT_READY;
}

}  // namespace

CUresult hand::cuEventCreate(CUevent* out, unsigned int flags) {
  Caller caller = enter(Needs::context);
  if (caller.error) return caller.error;
  bool shared_with_timing = (flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING);
  if (!out || (flags & ~kEventFlagsKnown) != 0 || shared_with_timing) return CUDA_ERROR_INVALID_VALUE;
  CUevent event = nullptr;
  CUresult result = forward::cuEventCreate(caller, &event, flags);
  if (result == CUDA_SUCCESS) {
    if (EventState* state = find_event(event)) state->flags = flags;
    *out = event;
  }
  return leave(caller, result);
}

CUresult hand::cuEventDestroy_v2(CUevent event) {
  EventCall on(event);
  if (on.error) return on.error;
  return leave(on.caller, forward::cuEventDestroy_v2(on.caller, event));
}

CUresult hand::cuIpcOpenEventHandle(CUevent* out, CUipcEventHandle handle) {
  Caller caller = enter(Needs::context);
  if (caller.error) return caller.error;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  CUevent event = nullptr;
  CUresult result = forward::cuIpcOpenEventHandle(caller, &event, handle);
  if (result == CUDA_SUCCESS) {
    if (EventState* state = find_event(event)) state->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    *out = event;
  }
  return leave(caller, result);
}

CUresult hand::cuEventRecord(CUevent event, CUstream stream, bool per_thread) {
  return record(event, stream, per_thread, [&](const StreamCall& on, uint64_t& sequence) {
    return forward::cuEventRecord(on.caller, event, on.stream(), false, &sequence);
  });
}

CUresult hand::cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags, bool per_thread) {
  if ((flags & ~unsigned(CU_EVENT_RECORD_EXTERNAL)) != 0) {
    const CUresult fault = enter(Needs::context).error;
    return is_sticky(fault) ? fault : CUDA_ERROR_INVALID_VALUE;
  }
  if (flags == 0) return hand::cuEventRecord(event, stream, per_thread);
  return record(event, stream, per_thread, [&](const StreamCall& on, uint64_t& sequence) {
    return forward::cuEventRecordWithFlags(on.caller, event, on.stream(), flags, false, &sequence);
  });
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
  if (result == CUDA_SUCCESS) note_record(*state, kNoStream, 0, sequence);
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

CUresult hand::cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event) {
  Caller caller = enter(Needs::context);
  const CUresult wrong = event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;  // as measured on driver 580
  if (CUresult error = argument_first(caller.error, wrong)) return error;
  return leave(caller, forward::cuIpcGetEventHandle(caller, handle, event));
}

CUresult hand::cuEventQuery(CUevent event) {
  EventCall on(event);
  if (on.error) return on.error;
  if (uint64_t capture = on.state->capture.load(std::memory_order_relaxed)) {
    // Of a capture that is over or invalid (as measured on driver 580).
    if (!on.caller.server->captures.invalidate(capture)) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  if (CUresult error = on.caller.server->captures.permit_unsafe_call()) return error;
  const uint64_t record = on.state->record.load(std::memory_order_acquire);
  const bool watched = on.state->watched.load(std::memory_order_acquire) >= record;
  const bool done = event_done(*on.state);
  if (record != 0 && (watched || !done) && !on.state->polled.load(std::memory_order_relaxed)) {
    on.state->polled.store(true, std::memory_order_relaxed);
    if (watched && !done) on.caller.session->flush();  // the record is on its way from here on
  }
  if (done) return finished(on);
  if (is_shared(*on.state)) return leave(on.caller, forward::cuEventQuery(on.caller, event));
  on.caller.server->posted_uploads.settle(on.caller, record);
  uint64_t now = on.caller.server->progress();
  if (watched) {
    if (on.state->asked.load(std::memory_order_relaxed) == now) return read_watched(on);
    // The progress may be this record's own, which came since it was looked at.
    if (event_done(*on.state)) return finished(on);
  }
  CUresult result = forward::cuEventQuery(on.caller, event);
  if (result == CUDA_SUCCESS) settle(on, record);
  if (result != CUDA_ERROR_NOT_READY) return leave(on.caller, result);
  on.state->asked.store(now, std::memory_order_relaxed);
  if (CUresult error = watch(on, event, record)) return leave(on.caller, error);
  on.caller.session->flush();
  return CUDA_ERROR_NOT_READY;
}

CUresult hand::cuEventSynchronize(CUevent event) {
  EventCall on(event);
  if (on.error) return on.error;
  if (in_host_callback()) return CUDA_ERROR_NOT_PERMITTED;
  if (uint64_t capture = on.state->capture.load(std::memory_order_relaxed)) {
    // Of a capture that is over or invalid (as measured on driver 580).
    if (!on.caller.server->captures.invalidate(capture)) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  if (CUresult error = on.caller.server->captures.permit_unsafe_call()) return error;
  if (event_done(*on.state)) return finished(on);
  uint64_t record = on.state->record.load(std::memory_order_acquire);
  on.caller.server->host_regions.push(on.caller);  // a kernel may be waiting for what the program has written
  CUresult result = forward::cuEventSynchronize(on.caller, event);
  if (result == CUDA_SUCCESS) settle(on, record);
  return leave(on.caller, result);
}

CUresult hand::cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  EventCall from(start);
  // Of two mistakes the one with the time is another error than elsewhere (as measured on driver 580).
  if (from.error) return argument_first(from.error, milliseconds ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
  EventCall to(end);
  if (to.error) return to.error;
  for (const EventState* state : {from.state, to.state}) {
    bool timed = !(state->flags & CU_EVENT_DISABLE_TIMING) && state->record.load(std::memory_order_acquire) != 0;
    if (!timed) return CUDA_ERROR_INVALID_HANDLE;
  }
  if (from.state->context != to.state->context) return CUDA_ERROR_INVALID_HANDLE;
  if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;  // the events come first, as measured on driver 580
  for (const EventState* state : {from.state, to.state}) {
    if (!event_done(*state))
      to.caller.server->posted_uploads.settle(to.caller, state->record.load(std::memory_order_acquire));
  }
  return leave(to.caller, forward::cuEventElapsedTime_v2(to.caller, milliseconds, start, end));
}

}  // namespace gpuwire::client
