#include "client_stub/driver/copy/posted_uploads.hpp"

#include "client/session_sends.hpp"
#include "client_stub/driver/call/caller.hpp"
#include "client_stub/driver/stream/host_callbacks.hpp"
#include "client_stub/driver/session/server_session.hpp"
#include "client_stub/driver/stream/stream.hpp"

namespace gpuwire::client {
namespace {

// An empty copy is answered when the blocking copies before it in its context have arrived, whatever the streams have
// got to do since.
CUresult await_arrival(const Caller& caller, uint32_t context) noexcept {
  return send::call_copy_to_device(*caller.session, context, {.blocking = true}, {});
}

}  // namespace

void PostedUploads::posting(const Caller& caller) noexcept {
  if (context_.load(std::memory_order_acquire) != caller.context) context_.store(caller.context);
}

CUresult PostedUploads::posted(const Caller& caller, uint64_t sequence, size_t bytes) noexcept {
  if (state_.load() != State::posting) return await_arrival(caller, caller.context);
  if (bytes > kCopyBesideWorkBytesMax) raise(told_, sequence);
  return CUDA_SUCCESS;
}

bool PostedUploads::unseen_by_host(const Caller& caller) noexcept {
  const ServerSession& server = *caller.server;
  return !server.host_regions.any() && !server.managed_memory.any() && !server.pending_copies.any() &&
         !server.graph_memory.any() && !server.host_callbacks.any();
}

// How the wait ends is of no interest: a context that is gone has nothing on its way, and what is wrong with a living
// one its next call says.
void PostedUploads::await(const Caller& caller, uint32_t context) noexcept {
  const uint64_t told = told_.load(std::memory_order_relaxed);
  static_cast<void>(await_arrival(caller, context));
  raise(arrived_, told);
  // A copy that has failed has not waited for what came before it: the server is asked for that.
  caller.server->note_progress();
}

void PostedUploads::settle(const Caller& caller, uint64_t sequence) noexcept {
  const uint64_t told = told_.load(std::memory_order_relaxed);
  if (told < sequence || told <= arrived_.load(std::memory_order_relaxed) || in_host_callback()) return;
  if (context_.load() == caller.context) await(caller, caller.context);
}

// Each thread that finds the end begun but not done waits for itself: what it was told of may be in its way yet.
void PostedUploads::end(const Caller& caller) noexcept {
  if (state_.load(std::memory_order_acquire) == State::ended) return;
  State posting = State::posting;
  state_.compare_exchange_strong(posting, State::ending);
  if (in_host_callback()) return;
  if (uint32_t context = context_.load()) await(caller, context);
  state_.store(State::ended);
}

}  // namespace gpuwire::client
