// What the stub knows of streams and events, so that queries and most synchronisation need not ask the server.
//
// All is told in sequences of frames: work sent with sequence s is known to be done when some `done` that covers its
// stream is >= s.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>

namespace gpuwire::client {

class ServerSession;
struct ContextState;

// Raises `value` to at least `to`. Release, partner: the acquire loads of `done` in stream_idle() and its like; whoever
// sees that a copy is done also sees the bytes that the reading thread stored before.
inline void raise(std::atomic<uint64_t>& value, uint64_t to) noexcept {
  uint64_t seen = value.load(std::memory_order_relaxed);
  while (seen < to && !value.compare_exchange_weak(seen, to, std::memory_order_release, std::memory_order_relaxed)) {}
}

// Type-stable: recycled into other streams, never freed, because a notice may be about a stream that is being
// destroyed.
struct StreamState {
  std::atomic<uint64_t> handle{0};  // wire handle; 0 for the NULL stream and between two lives
  ContextState* context = nullptr;
  uint32_t flags = 0;                // CU_STREAM_NON_BLOCKING
  std::atomic<int32_t> priority{0};  // publishes nothing: relaxed
  uint64_t id = 0;                   // cuStreamGetId
  std::atomic<uint64_t> work{0};     // newest frame that sent work here
  std::atomic<uint64_t> done{0};
  std::atomic<uint64_t> watched{0};  // newest watch_stream frame sent for it
  std::atomic<uint64_t> asked{0};    // ServerSession::progress() when the server last said that it is not ready
  std::atomic<int32_t> failed{0};    // what a completion notice said went wrong, until reported
  std::atomic<uint64_t> capture{0};  // id of the capture it takes part in, capture.hpp; 0: none
};

// Type-stable, as streams.
struct EventState {
  std::atomic<uint64_t> handle{0};
  ContextState* context = nullptr;
  uint32_t flags = 0;
  std::atomic<uint64_t> record{0};   // frame of the newest record; 0: never recorded
  std::atomic<uint64_t> stream{0};   // wire handle of the stream it was recorded in
  std::atomic<uint64_t> done{0};     // newest record known to be done
  std::atomic<uint64_t> watched{0};  // newest record for which watch_event was sent
  std::atomic<uint64_t> asked{0};    // ServerSession::progress() when the server last said that it is not ready, or
                                     // before a record that is watched from the beginning
  std::atomic<bool> polled{false};   // the newest record was asked about before it was known to be done, or is watched
                                     // and was asked about: the next one is watched, too. A hint: relaxed
  std::atomic<int32_t> failed{0};
  std::atomic<uint64_t> capture{0};  // its newest record was in a capturing stream: the capture's id
};

// The state behind a wire stream handle (0 and 1: the context's NULL stream). Null: not known.
StreamState* find_stream(const ContextState* context, uint64_t wire_stream) noexcept;
EventState* find_event(CUevent event) noexcept;

// Handles with state attached; 0: too many. Flags and priority are set by the creator before it hands the handle out.
uint64_t create_stream_handle(ServerSession* session, ContextState* context) noexcept;
uint64_t create_event_handle(ServerSession* session, ContextState* context) noexcept;
// End a handle and recycle its state. False: was not known.
bool forget_stream_handle(uint64_t handle) noexcept;
bool forget_event_handle(uint64_t handle) noexcept;

// Everything that was sent to the context up to `sequence` is done (a context was synchronised), and the program is
// told.
void note_context_done(ContextState& context, uint64_t sequence) noexcept;
// The same for one stream of a context of this session.
void note_stream_done(ServerSession& session, StreamState& stream, uint64_t sequence) noexcept;
// Is there nothing on the stream, or in the context, that is not known to be done?
bool stream_idle(const StreamState& stream) noexcept;
bool context_idle(const ContextState& context) noexcept;
// May other processes record it or wait for it? Then nothing about it is known here, and what is asked of it is at the
// server's driver when the call returns: the program tells the other process what it did by ways of its own.
inline bool is_shared(const EventState& event) noexcept { return (event.flags & CU_EVENT_INTERPROCESS) != 0; }
// Is the newest record of the event known to be done (or was there none)? Never so of a shared one.
bool event_done(const EventState& event) noexcept;

}  // namespace gpuwire::client
