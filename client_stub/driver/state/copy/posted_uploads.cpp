#include "client_stub/driver/state/copy/posted_uploads.hpp"

#include "client/session_sends.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/stream/host_callbacks.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/stream/stream.hpp"
#include "client_stub/driver/state/copy/pending_copies.hpp"
#include "client_stub/driver/state/graph/graph_memory.hpp"
#include "client_stub/driver/state/host_memory/host_regions.hpp"
#include "client_stub/driver/state/managed_memory/managed_memory.hpp"
#include "client_stub/driver/state/copy/memory_in_flight.hpp"

namespace gpuwire::client {
namespace {

// The server answers an empty copy when the earlier blocking copies of its context have arrived, whatever later work
// the streams have.
CUresult await_arrival(const Caller& caller, uint32_t context) noexcept {
  return send::call_copy_to_device(*caller.session, context, {.blocking = true}, {});
}

}  // namespace

void PostedUploads::posting(const Caller& caller) noexcept {
  if (context_.load(std::memory_order_acquire) != caller.context) context_.store(caller.context);
}

CUresult PostedUploads::posted(const Caller& caller, uint64_t sequence, size_t bytes) noexcept {
  if (state_.load() != State::posting) return await_arrival(caller, caller.context);
  raise(notified_any_, sequence);
  if (bytes > kCopyBesideWorkBytesMax) raise(notified_, sequence);
  return CUDA_SUCCESS;
}

bool PostedUploads::notify_stream_done(const Caller& caller, const StreamState& stream, uint64_t wire_stream,
                                       CUresult& error) noexcept {
  if (wire_stream > wire::kStreamLegacy || caller.state->is_green() || in_host_callback() ||
      !caller.session->facts().orders_uploads || state_.load(std::memory_order_relaxed) != State::posting ||
      host_writes_under_way(*caller.state) || !unseen_by_host(caller))
    return false;
  error = CUDA_SUCCESS;
  // The copies' own calls, or this kind of call, have already reported the copies as done.
  if (notified_any_.load(std::memory_order_relaxed) >= stream.work.load(std::memory_order_relaxed)) return true;
  posting(caller);
  uint64_t sequence = 0;
  error = send::post_copy_to_device(*caller.session, caller.context, {.stream = wire_stream, .blocking = true}, {},
                                    &sequence);
  if (!error) error = posted(caller, sequence, kCopyBesideWorkBytesMax + 1);
  return true;
}

void PostedUploads::stream_beside_begins(const Caller& caller) noexcept {
  streams_beside_.store(true, std::memory_order_relaxed);
  if (!caller.session->facts().orders_uploads) end(caller);
}

bool PostedUploads::unseen_by_host(const Caller& caller) noexcept {
  ServerSession& server = *caller.server;
  return (!server.host_regions.any() || !host_writes_under_way(*caller.state)) && !server.managed_memory.any() &&
         !server.host_callbacks.any_to_come() && !server.in_flight.any_writes() &&
         !has(server.in_flight.standing(), Awaits::functions);
}

// The result of the wait does not matter: a context that is gone has no work in flight, and the next call in a living
// context reports its error.
void PostedUploads::await(const Caller& caller, uint32_t context) noexcept {
  const uint64_t told = notified_.load(std::memory_order_relaxed);
  static_cast<void>(await_arrival(caller, context));
  raise(arrived_, told);
  // A failed copy has not waited for the work before it, so the server is asked for that wait.
  caller.server->note_progress();
}

void PostedUploads::settle(const Caller& caller, uint64_t sequence) noexcept {
  const uint64_t told = notified_.load(std::memory_order_relaxed);
  if (told < sequence || told <= arrived_.load(std::memory_order_relaxed) || in_host_callback()) return;
  if (context_.load() == caller.context) await(caller, caller.context);
}

// Each thread that finds the end begun but not done waits for itself: a copy that was reported to it may still be in
// flight.
void PostedUploads::end(const Caller& caller) noexcept {
  if (state_.load(std::memory_order_acquire) == State::ended) return;
  State posting = State::posting;
  state_.compare_exchange_strong(posting, State::ending);
  if (in_host_callback()) return;
  if (uint32_t context = context_.load()) await(caller, context);
  state_.store(State::ended);
}

}  // namespace gpuwire::client
