#include "client_stub/driver/state/copy/copy_rules.hpp"

#include "client/forward.hpp"
#include "client/session_sends.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/stream/stream_call.hpp"
#include "client_stub/driver/state/stream/stream_wait.hpp"
#include "client_stub/driver/state/copy/pending_copies.hpp"
#include "client_stub/driver/state/host_memory/host_regions.hpp"
#include "client_stub/driver/state/stream/capture.hpp"
#include "client_stub/driver/state/stream/host_callbacks.hpp"
#include "client_stub/driver/state/copy/memory_in_flight.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {

CUresult await_verdict(const Caller& caller) { return send::call_ping(*caller.session, caller.context, {}); }

bool synchronise_context(const Caller& caller) noexcept {
  if (!caller.state || caller.server->captures.any() || in_host_callback()) return false;
  const uint64_t up_to = caller.state->work.load(std::memory_order_relaxed);
  caller.server->host_regions.push_known(caller);  // a kernel may be waiting for a write of the program
  if (forward::cuCtxSynchronize(caller)) return false;
  note_context_done(*caller.state, up_to);
  return true;
}

bool stands_for_program(const Caller& caller, uint64_t stream) noexcept {
  return has(caller.server->in_flight.ahead_of(caller, stream), Awaits::program);
}

SourceRead when_to_read(const Caller& caller, const Place& source, uint64_t stream, Form form) noexcept {
  // A host function may not wait, and no call may wait for its end.
  if (in_host_callback()) return SourceRead::now;
  ServerSession& server = *caller.server;
  MemoryInFlight& in_flight = server.in_flight;
  const bool written = in_flight.being_written(source.address, source.bytes);
  if (server.host_regions.any() && server.host_regions.holds(source.address, 1)) return SourceRead::settled;
  if (!source.in_pinned()) return written ? SourceRead::settled : SourceRead::now;
  if (form == Form::ordered && in_flight.ahead_of(caller, stream) != Awaits::nothing) return SourceRead::late;
  const bool called = server.host_callbacks.any_of_program_to_come() || has(in_flight.standing(), Awaits::functions);
  return written || (called && form == Form::blocking) ? SourceRead::settled : SourceRead::now;
}

CUresult settle_source(const Caller& caller, const Place& source, uint64_t stream) {
  ServerSession& server = *caller.server;
  const bool pending = server.pending_copies.touches(source.memory(), source.bytes);
  if (pending && !has(server.in_flight.standing(), Awaits::program) && synchronise_context(caller)) return CUDA_SUCCESS;
  // Writes of the device and of host functions arrive with a synchronisation.
  return synchronise_stream(reinterpret_cast<CUstream>(stream), false);
}

CUresult await_writers(const Caller& caller, uint64_t stream, size_t bytes, Form form) {
  constexpr size_t kReadInCallBytesMax = 64u << 10;
  if (form == Form::ordered || bytes > kReadInCallBytesMax || context_idle(*caller.state) ||
      caller.server->captures.any() || in_host_callback())
    return CUDA_SUCCESS;
  return forward::cuStreamSynchronize(caller, reinterpret_cast<CUstream>(stream));
}

CUresult await_turn(const Caller& caller, uint64_t stream) {
  const StreamState* state = find_stream(caller.state, stream);
  const bool behind_null_stream = state && state != &caller.state->legacy &&
                                  !waits_only_for_itself(*caller.state, *state) && !caller.server->captures.any() &&
                                  !has(caller.server->in_flight.standing(), Awaits::program);
  if (behind_null_stream) {
    if (CUresult error = forward::cuStreamSynchronize(caller, CU_STREAM_LEGACY)) return error;
  }
  return forward::cuStreamSynchronize(caller, reinterpret_cast<CUstream>(stream));
}

CUresult refuse_in_capture(const Caller& caller, uint64_t stream, bool blocking) {
  Captures& captures = caller.server->captures;
  if (!captures.any()) [[likely]]
    return CUDA_SUCCESS;
  StreamState* state = find_stream(caller.state, stream);
  const CUstreamCaptureStatus status = state ? captures.status(*state) : CU_STREAM_CAPTURE_STATUS_NONE;
  if (status == CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_SUCCESS;
  if (blocking) {
    captures.invalidate(*state);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return status == CU_STREAM_CAPTURE_STATUS_INVALIDATED ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

}  // namespace gpuwire::client
