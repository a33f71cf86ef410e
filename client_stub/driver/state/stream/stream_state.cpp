// The bookkeeping of stream.hpp. Lock order: none; each lock here is a leaf.
#include <algorithm>
#include <new>

#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/handle/handle_table.hpp"
#include "client_stub/driver/process/process.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {
namespace {

// Recycles the states of ended handles for new handles of the same kind. Their number is bounded by the largest number
// of live handles.
template <class State>
class Recycler {
 public:
  State* take() noexcept {
    {
      MutexLock lock(mutex_);
      if (free_) {
        Node* node = free_;
        free_ = node->next;
        return &node->state;
      }
    }
    Node* node = new (std::nothrow) Node;
    return node ? &node->state : nullptr;
  }
  void give(State* state) noexcept {
    auto* node = reinterpret_cast<Node*>(state);
    MutexLock lock(mutex_);
    node->next = free_;
    free_ = node;
  }

 private:
  struct Node {
    State state;  // first member: give() converts its address to the node's
    Node* next = nullptr;
  };
  Mutex mutex_;
  Node* free_ GUARDED_BY(mutex_) = nullptr;
};

constinit Recycler<StreamState> g_streams;
constinit Recycler<EventState> g_events;

uint64_t next_id() noexcept {
  Process* owner = process();
  return owner ? owner->next_id.fetch_add(1, std::memory_order_relaxed) : 0;
}

}  // namespace

StreamState* find_stream(const ContextState* context, uint64_t wire_stream) noexcept {
  if (wire_stream <= wire::kStreamLegacy) return const_cast<StreamState*>(&context->legacy);
  return handles().find<StreamState>(wire::HandleKind::stream, wire_stream);
}

EventState* find_event(CUevent event) noexcept {
  return handles().find<EventState>(wire::HandleKind::event, reinterpret_cast<uint64_t>(event));
}

uint64_t create_stream_handle(ServerSession* session, ContextState* context) noexcept {
  StreamState* state = g_streams.take();
  if (!state) return 0;
  state->context = context;
  state->flags = 0;
  state->priority = 0;
  state->id = next_id();
  for (auto* value : {&state->work, &state->done, &state->watched, &state->asked, &state->capture})
    value->store(0, std::memory_order_relaxed);
  state->failed.store(0, std::memory_order_relaxed);
  uint64_t handle = handles().create(wire::HandleKind::stream, session, state);
  state->handle.store(handle, std::memory_order_release);
  if (handle == 0) g_streams.give(state);
  return handle;
}

uint64_t create_event_handle(ServerSession* session, ContextState* context) noexcept {
  EventState* state = g_events.take();
  if (!state) return 0;
  state->context = context;
  state->flags = 0;
  for (auto* value :
       {&state->record, &state->stream, &state->done, &state->closes, &state->watched, &state->asked, &state->capture})
    value->store(0, std::memory_order_relaxed);
  state->polled.store(false, std::memory_order_relaxed);
  state->foreign.store(false, std::memory_order_relaxed);
  state->failed.store(0, std::memory_order_relaxed);
  uint64_t handle = handles().create(wire::HandleKind::event, session, state);
  state->handle.store(handle, std::memory_order_release);
  if (handle == 0) g_events.give(state);
  return handle;
}

bool forget_stream_handle(uint64_t handle) noexcept {
  void* state = nullptr;
  if (!handles().forget(wire::HandleKind::stream, handle, &state)) return false;
  if (state) {
    static_cast<StreamState*>(state)->handle.store(0, std::memory_order_release);
    g_streams.give(static_cast<StreamState*>(state));
  }
  return true;
}

bool forget_event_handle(uint64_t handle) noexcept {
  void* state = nullptr;
  if (!handles().forget(wire::HandleKind::event, handle, &state)) return false;
  if (state) {
    static_cast<EventState*>(state)->handle.store(0, std::memory_order_release);
    g_events.give(static_cast<EventState*>(state));
  }
  return true;
}

void note_context_done(ContextState& context, uint64_t sequence) noexcept {
  raise(context.done, sequence);
  context.server->note_progress();
}

void note_stream_done(ServerSession& session, StreamState& stream, uint64_t sequence) noexcept {
  raise(stream.done, sequence);
  session.note_progress();
}

void note_event_done(EventState& event, uint64_t record) noexcept {
  raise(event.done, record);
  if (!event.context || is_shared(event) || event.closes.load(std::memory_order_relaxed) != record) return;
  // A newer record may be in another stream, of which this record proves nothing. The same holds for a record by a
  // graph, which the server may have checked instead of this one.
  const uint64_t handle = event.stream.load(std::memory_order_relaxed);
  StreamState* stream = find_stream(event.context, handle);
  const NewestRecord newest = newest_record(event);
  if (!stream || !newest.own || newest.sequence != record) return;
  // If the state has been recycled for another stream since, that stream's work is newer than the record.
  raise(stream->done, record);
}

bool context_idle(const ContextState& context) noexcept {
  return context.work.load(std::memory_order_relaxed) <= context.done.load(std::memory_order_acquire);
}

// Work in the NULL stream, or in a stream for which it waits, is done with the NULL stream; work of other streams is
// done with the context.
bool host_writes_under_way(const ContextState& context) noexcept {
  const uint64_t done = context.done.load(std::memory_order_acquire);
  return context.host_writes_beside.load(std::memory_order_relaxed) > done ||
         context.host_writes.load(std::memory_order_relaxed) >
             std::max(done, context.legacy.done.load(std::memory_order_acquire));
}

bool stream_idle(const StreamState& stream) noexcept {
  uint64_t work = stream.work.load(std::memory_order_relaxed);
  return work <= stream.done.load(std::memory_order_acquire) ||
         (stream.context && work <= stream.context->done.load(std::memory_order_acquire));
}

bool waits_only_for_itself(const ContextState& context, const StreamState& stream) noexcept {
  if (stream.flags & CU_STREAM_NON_BLOCKING) return true;
  const uint64_t newest = context.legacy.work.load(std::memory_order_relaxed);
  return newest <= stream.work.load(std::memory_order_relaxed) ||
         newest <= context.legacy.done.load(std::memory_order_acquire) ||
         newest <= context.done.load(std::memory_order_acquire);
}

NewestRecord newest_record(const EventState& event) noexcept {
  const uint64_t record = event.record.load(std::memory_order_acquire);
  // Acquire, partner: hand_over_event().
  if (!event.foreign.load(std::memory_order_acquire)) [[likely]]
    return {.sequence = record};
  const uint64_t launched = event.context ? event.context->server->foreign_records.load(std::memory_order_acquire) : 0;
  // The client also asks about an event without a local record before the first launch.
  const uint64_t foreign = std::max<uint64_t>(launched, 1);
  return record >= foreign ? NewestRecord{.sequence = record} : NewestRecord{.sequence = foreign, .own = false};
}

void note_record(const Caller& caller, EventState& event, uint64_t wire_stream, uint64_t capture, uint64_t sequence,
                 bool after_all) noexcept {
  const bool null_of_green = wire_stream <= wire::kStreamLegacy && caller.state->is_green();
  event.stream.store(null_of_green ? kNoStream : wire_stream, std::memory_order_relaxed);
  event.capture.store(capture, std::memory_order_relaxed);
  event.failed.store(0, std::memory_order_relaxed);
  if (after_all) event.closes.store(sequence, std::memory_order_relaxed);
  // Release: a thread that sees the record also sees its stream. Partner: event_done().
  event.record.store(sequence, std::memory_order_release);
}

bool event_done(const EventState& event) noexcept {
  if (is_shared(event)) return false;
  const auto [record, own] = newest_record(event);
  if (record <= event.done.load(std::memory_order_acquire)) return true;
  const ContextState* context = event.context;
  // A graph may run in a stream of any context.
  if (!context || !own) return false;
  if (record <= context->done.load(std::memory_order_acquire)) return true;
  uint64_t handle = event.stream.load(std::memory_order_relaxed);
  const StreamState* stream = find_stream(context, handle);
  // The state may have been recycled for another stream since the look-up. `handle` is read after `done`, so if the
  // handle is still the stream's, so was `done`.
  return stream && record <= stream->done.load(std::memory_order_acquire) &&
         (handle <= wire::kStreamLegacy || stream->handle.load(std::memory_order_acquire) == handle);
}

}  // namespace gpuwire::client
