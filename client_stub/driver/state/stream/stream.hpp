// The client's state of streams and events, which answers queries and most synchronisation without the server.
//
// All times are sequences of frames: work that was sent with sequence s is known to be done when a `done` that covers
// its stream is >= s.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>

namespace gpuwire::client {

class ServerSession;
struct Caller;
struct ContextState;

// Raises `value` to at least `to`. Release; partners: the acquire loads of `done` in stream_idle() and similar
// functions. A thread that sees that a copy is done also sees the bytes that the reading thread stored before.
inline void raise(std::atomic<uint64_t>& value, uint64_t to) noexcept {
  uint64_t seen = value.load(std::memory_order_relaxed);
  while (seen < to && !value.compare_exchange_weak(seen, to, std::memory_order_release, std::memory_order_relaxed)) {}
}

// Type-stable: recycled for other streams, never freed, because a notice may concern a stream that is being destroyed.
struct StreamState {
  // The wire handle; 0 for the NULL stream, and between two lives.
  std::atomic<uint64_t> handle{0};
  ContextState* context = nullptr;
  // CU_STREAM_NON_BLOCKING.
  uint32_t flags = 0;
  // Publishes nothing, so relaxed.
  std::atomic<int32_t> priority{0};
  // The id that cuStreamGetId returns.
  uint64_t id = 0;
  // The newest frame that sent work to the stream.
  std::atomic<uint64_t> work{0};
  std::atomic<uint64_t> done{0};
  // The newest watch_stream frame for the stream.
  std::atomic<uint64_t> watched{0};
  // ServerSession::progress() when the server last reported that the stream is not ready.
  std::atomic<uint64_t> asked{0};
  // The failure in a completion notice, until it is reported.
  std::atomic<int32_t> failed{0};
  // The id of the stream's capture (capture.hpp); 0: none.
  std::atomic<uint64_t> capture{0};
};

// Type-stable, like streams.
struct EventState {
  std::atomic<uint64_t> handle{0};
  ContextState* context = nullptr;
  uint32_t flags = 0;
  // The frame of the newest record; 0: the event was never recorded.
  std::atomic<uint64_t> record{0};
  // The wire handle of the stream in which the event was recorded.
  std::atomic<uint64_t> stream{0};
  // The newest record that is known to be done.
  std::atomic<uint64_t> done{0};
  // The newest record by cuEventRecord: when it is done, so is all earlier work of its stream. Relaxed: a thread reads
  // it when it has learned that the record is done.
  std::atomic<uint64_t> closes{0};
  // The newest record for which watch_event was sent.
  std::atomic<uint64_t> watched{0};
  // ServerSession::progress() when the server last reported that the event is not ready, or before a record that is
  // watched from the beginning.
  std::atomic<uint64_t> asked{0};
  // The program queried the newest record before it was known to be done, or while it is watched. The next record is
  // then watched, too. A hint, so relaxed.
  std::atomic<bool> polled{false};
  std::atomic<int32_t> failed{0};
  // The id of the capture in which the newest record was made; 0: none.
  std::atomic<uint64_t> capture{0};
  // The server may record the event by itself, as graphs with a node for it do: newest_record(). Stays set until the
  // event ends.
  std::atomic<bool> foreign{false};
};

// Returns whether the stream synchronises with the NULL stream.
inline bool is_blocking(const StreamState& stream) noexcept { return !(stream.flags & CU_STREAM_NON_BLOCKING); }

// Returns the state behind a wire stream handle (0 and 1: the context's NULL stream). Null: unknown.
StreamState* find_stream(const ContextState* context, uint64_t wire_stream) noexcept;
EventState* find_event(CUevent event) noexcept;

// Returns a handle with state; 0: too many. The creator sets flags and priority before it returns the handle to the
// program.
uint64_t create_stream_handle(ServerSession* session, ContextState* context) noexcept;
uint64_t create_event_handle(ServerSession* session, ContextState* context) noexcept;
// Ends a handle and recycles its state. Returns false if the handle is unknown.
bool forget_stream_handle(uint64_t handle) noexcept;
bool forget_event_handle(uint64_t handle) noexcept;

// Notes that all work that was sent to the context up to `sequence` is done, and that the program learns of it (a
// context was synchronised).
void note_context_done(ContextState& context, uint64_t sequence) noexcept;
// The same for one stream of a context of this session.
void note_stream_done(ServerSession& session, StreamState& stream, uint64_t sequence) noexcept;
// Notes that this record of the event is done, and with it the earlier work of its stream. The program does not learn
// of it.
void note_event_done(EventState& event, uint64_t record) noexcept;
// Returns whether all work in the stream, or in the context, is known to be done.
bool stream_idle(const StreamState& stream) noexcept;
bool context_idle(const ContextState& context) noexcept;
// Returns whether an operation that the stream gets now waits for no unfinished work but the stream's own, as far as
// the client knows: neither for the NULL stream nor for the streams that synchronise with it. Otherwise the end of the
// operation proves the end of that work, so the operation must reach the server.
bool waits_only_for_itself(const ContextState& context, const StreamState& stream) noexcept;
// Returns whether other processes may record the event or wait for it. Its state is then unknown here, and a request
// about it has reached the server's driver when the call returns: the program notifies the other process through its
// own channels.
inline bool is_shared(const EventState& event) noexcept { return (event.flags & CU_EVENT_INTERPROCESS) != 0; }
// The frame of the event's newest record, as far as the client knows; 0: never.
struct NewestRecord {
  uint64_t sequence = 0;
  // A call of the client made the record. Otherwise the event is foreign, and a graph that was launched since may have
  // recorded it, or no graph (the client does not track which graph records it): only the server's report about the
  // event proves that it is done.
  bool own = true;
};
NewestRecord newest_record(const EventState& event) noexcept;
// Returns whether the newest record of the event is known to be done, or there was none. Always false for a shared
// event.
bool event_done(const EventState& event) noexcept;
// Notes that a call of the client records the event with this frame; `capture` is that of the stream, 0: none.
// `after_all`: the record waits for all earlier work of the stream; an event in a launch's attributes may not.
void note_record(const Caller& caller, EventState& event, uint64_t wire_stream, uint64_t capture, uint64_t sequence,
                 bool after_all = true) noexcept;
// Stands for no stream, in records whose completion a NULL stream's progress does not prove.
inline constexpr uint64_t kNoStream = ~uint64_t(0);

}  // namespace gpuwire::client
