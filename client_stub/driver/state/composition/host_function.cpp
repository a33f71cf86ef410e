// The steps of a host function that concern other parts of the session: its call is sent to a stream, and its answer
// behind the data that it has written.
#include "client/session_sends.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/copy/memory_in_flight.hpp"
#include "client_stub/driver/state/graph/graph_memory.hpp"
#include "client_stub/driver/state/graph/graph_records.hpp"
#include "client_stub/driver/state/host_memory/host_regions.hpp"
#include "client_stub/driver/state/managed_memory/managed_memory.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/stream/capture.hpp"
#include "client_stub/driver/state/stream/host_callbacks.hpp"
#include "client_stub/session/session.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {

void HostCallbacks::answer(const Due& due, const HostCallback& callback) noexcept {
  const Caller caller = session_.own_caller();
  if (callback.source) {
    if (due.status == CUDA_SUCCESS) session_.graph_memory.push(caller, callback.source->ranges);
  } else {
    // Later work of the stream must see the function's writes.
    session_.host_regions.push(caller);
    session_.managed_memory.hand_over();
    session_.graph_memory.push_launched(caller);
  }
  send::post_host_function_done(*caller.session, 0, {.callback = due.number});
  caller.session->flush();
}

CUresult send_host_callback(const Caller& caller, HostCallback callback, bool per_thread) {
  CUresult error;
  uint64_t wire_stream = resolve_stream(caller, callback.stream, per_thread, error);
  if (error) return error;
  const StreamState* state = find_stream(caller.state, wire_stream);
  callback.repeats = state && state->capture.load(std::memory_order_relaxed) != 0;
  // Graphs have host functions, but no stream callbacks.
  if (callback.repeats && callback.stream_callback) {
    caller.server->captures.invalidate(*state);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if ((error = before_work(caller))) return error;
  uint64_t number = caller.server->host_callbacks.add(callback);
  if (number == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint8_t kind = callback.stream_callback ? 1 : 0;
  uint64_t sequence = 0;
  error = send::post_host_function(*caller.session, caller.context,
                                   {.stream = wire_stream, .callback = number, .kind = kind}, &sequence);
  if (error) {
    caller.server->host_callbacks.remove(number);
    return error;
  }
  caller.server->host_callbacks.sent(number, wire_stream, sequence);
  note_stream_work(caller, wire_stream, sequence);
  if (callback.repeats) {
    caller.server->graph_records.note_awaits(state->capture.load(std::memory_order_relaxed), Awaits::functions);
  } else {
    caller.server->in_flight.note_standing(caller, wire_stream, sequence, Awaits::callbacks);
  }
  return CUDA_SUCCESS;
}

}  // namespace gpuwire::client
