// Completion notices for events and streams, so that the client answers cuEventQuery and cuStreamQuery by itself.
#include <memory>

#include "server/replay/completion/completion.hpp"
#include "server/replay/call/explain.hpp"
#include "server/replay/completion/polling.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/context/context.hpp"
#include "server/replay/copy/copy_back.hpp"
#include "server/replay/session/replay_state.hpp"
#include "server/replay/stream/spinning_query.hpp"
#include "server/replay/stream/watched_events.hpp"
#include "server/session_handlers.hpp"
#include "server/session_notices.hpp"

namespace gpuwire::server {

void WatchedEvents::enter(CUevent event) {
  MutexLock lock(mutex_);
  ++watches_[event].watchers;
}

void WatchedEvents::leave(CUevent event) {
  {
    MutexLock lock(mutex_);
    auto found = watches_.find(event);
    if (found == watches_.end() || --found->second.watchers > 0) return;
    const bool destroyed = found->second.destroyed;
    watches_.erase(found);
    if (!destroyed) return;
  }
  drive(driver_.cuEventDestroy_v2, event);
}

CUresult WatchedEvents::destroy(CUevent event) {
  {
    MutexLock lock(mutex_);
    auto found = watches_.find(event);
    if (found != watches_.end()) {
      found->second.destroyed = true;
      return CUDA_SUCCESS;
    }
  }
  return drive(driver_.cuEventDestroy_v2, event);
}

namespace {

struct Watch {
  uint64_t event = 0;
  uint64_t record = 0;
  uint64_t stream = 0;
  uint64_t sequence = 0;
  QuerySpin::Clock::time_point asked = QuerySpin::Clock::now();
};

// Sends the data of copies before the completion, and the output of kernels before a failure, and then the completion.
void send_completion(Replay& replay, const Watch& watch, CUresult result) {
  deliver_finished_work(replay);
  explain(replay, result);
  notify::completion(replay.outbox(), {.event = watch.event,
                                       .record = watch.record,
                                       .stream = watch.stream,
                                       .sequence = watch.sequence,
                                       .result = result});
}

}  // namespace

void watch_event(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::WatchEvent>();
  Watch watch{params.getEvent(), params.getRecord(), 0, call.header.sequence};
  void* native = nullptr;
  Context* context = replay.state().contexts().current();
  if (!context || !replay.handles().find(wire::HandleKind::event, watch.event, native)) {
    send_completion(replay, watch, CUDA_ERROR_INVALID_HANDLE);
    return finish(replay, call, CUDA_SUCCESS);
  }
  CUevent event = static_cast<CUevent>(native);
  // A watch follows directly after a record that the program will poll for, or after a query whose wait was in vain.
  CUresult result = query_spinning(replay, [&] { return drive(replay.driver().cuEventQuery, event); });
  if (result == CUDA_ERROR_NOT_READY) {
    WatchedEvents& watched = replay.state().watched_events();
    watched.enter(event);
    auto lease = std::make_shared<PooledEvent>(context->events->lease());
    auto done = [&replay, &watched, watch, event, lease](CUresult completed) {
      watched.leave(event);
      replay.state().query_spin().completed(QuerySpin::Clock::now() - watch.asked);
      send_completion(replay, watch, completed);
    };
    if (replay.watcher().watch(context->native, event, done)) return finish(replay, call, CUDA_SUCCESS);
    watched.leave(event);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  send_completion(replay, watch, result);
  finish(replay, call, CUDA_SUCCESS);
}

void watch_stream(Replay& replay, Call& call) {
  Watch watch{0, 0, call.message.getRoot<schema::WatchStream>().getStream(), call.header.sequence};
  Context* context = replay.state().contexts().current();
  CUstream stream = nullptr;
  CUresult result = CUDA_SUCCESS;
  PooledEvent event;
  if (!context || !find_stream(replay, watch.stream, stream)) {
    result = CUDA_ERROR_INVALID_HANDLE;
  } else if (context = replay.state().contexts().enter_stream(stream); !(event = context->events->take())) {
    result = CUDA_ERROR_OUT_OF_MEMORY;
  } else {
    result = drive(replay.driver().cuEventRecord, event.get(), stream);
    if (result == CUDA_SUCCESS) result = drive(replay.driver().cuEventQuery, event.get());
  }
  if (result == CUDA_ERROR_NOT_READY) {
    CUevent native = event.get();
    auto shared = std::make_shared<PooledEvent>(std::move(event));
    auto done = [&replay, watch, shared](CUresult completed) {
      replay.state().query_spin().completed(QuerySpin::Clock::now() - watch.asked);
      send_completion(replay, watch, completed);
    };
    if (replay.watcher().watch(context->native, native, done)) return finish(replay, call, CUDA_SUCCESS);
    result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  send_completion(replay, watch, result);
  finish(replay, call, CUDA_SUCCESS);
}

}  // namespace gpuwire::server
