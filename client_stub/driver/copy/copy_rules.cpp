#include "client_stub/driver/copy/copy_rules.hpp"

#include "client/forward.hpp"
#include "client/hand.hpp"
#include "client/session_sends.hpp"
#include "client_stub/driver/context/context.hpp"
#include "client_stub/driver/session/server_session.hpp"
#include "client_stub/driver/stream/stream_call.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {

CUresult await_verdict(const Caller& caller) { return send::call_ping(*caller.session, caller.context, {}); }

CUresult settle_source(const Caller& caller, const Place& source, uint64_t stream) {
  ServerSession& server = *caller.server;
  if (server.pending_copies.touches(source.memory(), source.bytes)) {
    if (CUresult error = forward::cuCtxSynchronize(caller)) return error;
  }
  // What the device writes there arrives with a synchronisation.
  if (server.host_regions.any() && server.host_regions.holds(source.address, 1) && !in_host_callback()) {
    return synchronise_stream(reinterpret_cast<CUstream>(stream), false);
  }
  if (server.graph_memory.being_written(source.address, source.bytes) && !in_host_callback()) {
    return synchronise_stream(reinterpret_cast<CUstream>(stream), false);
  }
  if (!server.host_callbacks.any_to_come() || in_host_callback() || !source.in_pinned()) return CUDA_SUCCESS;
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
