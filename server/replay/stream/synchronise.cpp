// Calls that wait for the device. None blocks the executor for longer than its poll time.
#include <memory>
#include <vector>

#include "schema/api_context.capnp.h"
#include "schema/api_event.capnp.h"
#include "schema/api_stream.capnp.h"
#include "server/driver_table.hpp"
#include "server/custom.hpp"
#include "server/replay/context/context.hpp"
#include "server/replay/copy/copy_back.hpp"
#include "server/replay/completion/polling.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/session/replay_state.hpp"
#include "server/replay/stream/host_callbacks.hpp"
#include "server/replay/stream/spinning_query.hpp"
#include "server/replay/stream/stream_rest.hpp"
#include "server/replay/stream/watched_events.hpp"

namespace gpuwire::server {

CUresult query_stream(Replay& replay, CUstream stream) {
  const CUresult result = drive(replay.driver().cuStreamQuery, stream);
  if (result != CUDA_ERROR_NOT_READY) return result;
  bool caught_up = false;
  replay.state().contexts().for_each([&](Context& context) { caught_up |= context.passed.catch_up(replay.driver()); });
  return caught_up ? drive(replay.driver().cuStreamQuery, stream) : result;
}

bool streams_idle(Replay& replay) {
  const DriverTable& driver = replay.driver();
  bool idle = true;
  replay.handles().for_each(wire::HandleKind::stream, [&](uint64_t, void* native) {
    if (!idle) return;
    auto stream = static_cast<CUstream>(native);
    // A query would invalidate a capture.
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    idle = drive(driver.cuStreamIsCapturing, stream, &capturing) == CUDA_SUCCESS &&
           capturing == CU_STREAM_CAPTURE_STATUS_NONE && query_stream(replay, stream) == CUDA_SUCCESS;
  });
  return idle;
}

bool enter_living(Replay& replay, uint32_t number) {
  ContextTable& contexts = replay.state().contexts();
  const Context* context = contexts.find(number);
  return context && context->native && contexts.make_current(number) == CUDA_SUCCESS;
}

// Checks captures first, since a query of any stream would invalidate captures in global mode, and NULL streams last.
bool at_rest(Replay& replay) {
  bool idle = replay.state().callbacks().unanswered() == 0;
  replay.handles().for_each(wire::HandleKind::stream, [&](uint64_t, void* native) {
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    idle = idle &&
           drive(replay.driver().cuStreamIsCapturing, static_cast<CUstream>(native), &capturing) == CUDA_SUCCESS &&
           capturing == CU_STREAM_CAPTURE_STATUS_NONE;
  });
  idle = idle && streams_idle(replay);
  replay.state().contexts().for_each([&](Context& context) {
    if (!idle || !context.native) return;
    idle = enter_living(replay, wire_context(context.handle)) && query_stream(replay, nullptr) == CUDA_SUCCESS;
  });
  return idle;
}

namespace {

// Ends a synchronisation: sends the device's output and the data of the covered copies, then the reply.
void answer(Replay& replay, uint64_t sequence, CUresult result) {
  drain_if_due(replay, result);
  deliver_finished_work(replay);
  send_result(replay, sequence, result);
}

void answer_query(Replay& replay, Call& call, CUresult result) {
  if (result != CUDA_ERROR_NOT_READY) {
    deliver_finished_work(replay);
  }
  finish(replay, call, result);
}

// Answers a query of the client, after a short wait if the work may be done soon.
template <class Query>
void query(Replay& replay, Call& call, Query ask) {
  answer_query(replay, call, query_spinning(replay, ask));
}

// Returns events after all work that the session has put on the context's streams; no events if one stream cannot be
// marked.
std::vector<PooledEvent> mark_all(Replay& replay, Context& context) {
  const DriverTable& driver = replay.driver();
  std::vector<PooledEvent> marks;
  bool all = true;
  auto add = [&](CUstream stream) {
    PooledEvent event = context.events->take();
    CUresult result = event ? drive(driver.cuEventRecord, event.get(), stream) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) marks.push_back(std::move(event));
    return result;
  };
  // The legacy stream waits for every other one that does not opt out of it.
  all = add(nullptr) == CUDA_SUCCESS;
  replay.handles().for_each(wire::HandleKind::stream, [&](uint64_t, void* native) {
    if (!all) return;
    auto stream = static_cast<CUstream>(native);
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    all = drive(driver.cuStreamIsCapturing, stream, &capturing) == CUDA_SUCCESS &&
          capturing == CU_STREAM_CAPTURE_STATUS_NONE;
    if (!all || drive(driver.cuStreamQuery, stream) == CUDA_SUCCESS) return;
    CUresult result = add(stream);
    // The event belongs to this context, so a stream of another context refuses it; such a stream is not waited for.
    all = result == CUDA_SUCCESS || result == CUDA_ERROR_INVALID_HANDLE;
  });
  if (!all) marks.clear();
  return marks;
}

// Answers a call that waits for all work of a context. Precondition: `context` is current.
void synchronise_context(Replay& replay, Call& call, Context& context) {
  uint64_t sequence = call.header.sequence;
  CUresult result = CUDA_SUCCESS;
  // streams_idle() queries the streams that the legacy stream does not wait for.
  auto mark = std::make_shared<CompletionMark>(mark_stream(replay.driver(), *context.events, nullptr, result));
  auto lease = std::make_shared<PooledEvent>(context.events->lease());
  auto marks = std::make_shared<std::vector<PooledEvent>>();
  DeviceWait wait;
  if (mark->event) {
    wait.query = [&replay, mark] {
      CUresult queried = mark->poll(replay.driver());
      if (queried != CUDA_SUCCESS) return queried;
      if (!streams_idle(replay)) {
        mark->seen_early = false;  // the wait now ends later, and by then the driver knows
        return CUDA_ERROR_NOT_READY;
      }
      return synchronise_if_due(replay, queried, [&] { return drive(replay.driver().cuCtxSynchronize); });
    };
  }
  wait.wait = [&replay, lease, native = context.native] {
    drive(replay.driver().cuCtxSetCurrent, native);
    return drive(replay.driver().cuCtxSynchronize);
  };
  wait.events = [&replay, &context, marks] {
    *marks = mark_all(replay, context);
    std::vector<CUevent> events;
    for (const PooledEvent& one : *marks) events.push_back(one.get());
    return events;
  };
  wait.finish = [&replay, &context, mark, marks, sequence](CUresult waited) {
    // The events have completed; synchronising with them writes out the device's output.
    if (mark->seen_early) context.passed.add(replay.driver(), nullptr, std::move(mark->event));
    for (const PooledEvent& one : *marks)
      waited = synchronise_if_due(replay, waited, [&] { return drive(replay.driver().cuEventSynchronize, one.get()); });
    answer(replay, sequence, waited);
  };
  replay.poll_or_defer(call, std::move(wait));
}

}  // namespace

namespace custom {

void cuCtxSynchronize(Replay& replay, Call& call) {
  Context* context = replay.state().contexts().current();
  if (!context) return finish(replay, call, CUDA_ERROR_INVALID_CONTEXT);
  synchronise_context(replay, call, *context);
}

void cuCtxSynchronize_v2(Replay& replay, Call& call) {
  // The call may name another context than the caller's current one.
  uint64_t handle = call.message.getRoot<schema::CuCtxSynchronizeV2Params>().getCtx();
  if (handle != 0 && wire_context(handle) != call.header.context) {
    Context* context = replay.state().contexts().find(wire_context(handle));
    if (!context || context->handle != handle) return finish(replay, call, CUDA_ERROR_INVALID_CONTEXT);
    if (CUresult error = replay.state().contexts().make_current(wire_context(handle)))
      return finish(replay, call, error);
    return synchronise_context(replay, call, *context);
  }
  cuCtxSynchronize(replay, call);
}

void cuStreamSynchronize(Replay& replay, Call& call) {
  Context* context = replay.state().contexts().current();
  CUstream stream = nullptr;
  uint64_t sequence = call.header.sequence;
  if (!context) return finish(replay, call, CUDA_ERROR_INVALID_CONTEXT);
  if (!find_stream(replay, call.message.getRoot<schema::CuStreamSynchronizeParams>().getHStream(), stream)) {
    return finish(replay, call, CUDA_ERROR_INVALID_HANDLE);
  }
  context = replay.state().contexts().enter_stream(stream);
  CUresult result = CUDA_SUCCESS;
  auto mark = std::make_shared<CompletionMark>(mark_stream(replay.driver(), *context->events, stream, result));
  if (!mark->event) {
    // The stream is in error or captures, so the driver's own call has to give the result.
    call.answered = true;
    auto lease = std::make_shared<PooledEvent>(context->events->lease());
    replay.wait_elsewhere([&replay, lease, stream, sequence] {
      answer(replay, sequence, drive(replay.driver().cuStreamSynchronize, stream));
    });
    return;
  }
  DeviceWait wait;
  wait.query = [&replay, mark] { return mark->poll(replay.driver()); };
  wait.wait = [&replay, mark] { return wait_for_event(replay.driver(), mark->event.get()); };
  wait.events = [mark] { return std::vector{mark->event.get()}; };
  wait.finish = [&replay, context, stream, mark, sequence](CUresult waited) {
    waited = synchronise_if_due(replay, waited,
                                [&] { return drive(replay.driver().cuEventSynchronize, mark->event.get()); });
    if (mark->seen_early) context->passed.add(replay.driver(), stream, std::move(mark->event));
    answer(replay, sequence, waited);
  };
  replay.poll_or_defer(call, std::move(wait));
}

// After the answer "done" the program may read the results, as after a synchronisation.
void cuStreamQuery(Replay& replay, Call& call) {
  CUstream stream = nullptr;
  if (!find_stream(replay, call.message.getRoot<schema::CuStreamQueryParams>().getHStream(), stream)) {
    return finish(replay, call, CUDA_ERROR_INVALID_HANDLE);
  }
  query(replay, call, [&] { return query_stream(replay, stream); });
}

void cuEventQuery(Replay& replay, Call& call) {
  void* event = nullptr;
  if (!replay.handles().find(wire::HandleKind::event, call.message.getRoot<schema::CuEventQueryParams>().getHEvent(),
                             event)) {
    return finish(replay, call, CUDA_ERROR_INVALID_HANDLE);
  }
  query(replay, call, [&] { return drive(replay.driver().cuEventQuery, static_cast<CUevent>(event)); });
}

void cuEventSynchronize(Replay& replay, Call& call) {
  Context* context = replay.state().contexts().current();
  void* native = nullptr;
  uint64_t sequence = call.header.sequence;
  if (!context) return finish(replay, call, CUDA_ERROR_INVALID_CONTEXT);
  if (!replay.handles().find(wire::HandleKind::event,
                             call.message.getRoot<schema::CuEventSynchronizeParams>().getHEvent(), native)) {
    return finish(replay, call, CUDA_ERROR_INVALID_HANDLE);
  }
  auto event = static_cast<CUevent>(native);
  WatchedEvents& watched = replay.state().watched_events();
  watched.enter(event);
  auto lease = std::make_shared<PooledEvent>(context->events->lease());
  DeviceWait wait;
  wait.query = [&replay, event] { return drive(replay.driver().cuEventQuery, event); };
  wait.wait = [&replay, event] { return wait_for_event(replay.driver(), event); };
  wait.events = [event] { return std::vector{event}; };
  wait.finish = [&replay, &watched, lease, event, sequence](CUresult waited) {
    waited = synchronise_if_due(replay, waited, [&] { return drive(replay.driver().cuEventSynchronize, event); });
    watched.leave(event);
    answer(replay, sequence, waited);
  };
  replay.poll_or_defer(call, std::move(wait));
}

void cuEventDestroy_v2(Replay& replay, Call& call) {
  uint64_t handle = call.message.getRoot<schema::CuEventDestroyV2Params>().getHEvent();
  void* native = nullptr;
  if (!replay.handles().find(wire::HandleKind::event, handle, native))
    return finish(replay, call, CUDA_ERROR_INVALID_HANDLE);
  replay.handles().erase(wire::HandleKind::event, handle);
  finish(replay, call, replay.state().watched_events().destroy(static_cast<CUevent>(native)));
}

}  // namespace custom

}  // namespace gpuwire::server
