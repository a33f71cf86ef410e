#include "client_stub/driver/state/stream/stream_wait.hpp"

#include "client/forward.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/copy/posted_uploads.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/stream/capture.hpp"

namespace gpuwire::client {

CUresult finished(const StreamCall& on) noexcept {
  int32_t failed = on.state->failed.load(std::memory_order_relaxed);
  if (failed) failed = on.state->failed.exchange(0, std::memory_order_relaxed);
  return leave(on.caller, CUresult(failed));
}

CUresult refuse_captured(const StreamCall& on) noexcept {
  if (on.caller.state->captures.load(std::memory_order_relaxed) == 0) [[likely]]
    return CUDA_SUCCESS;
  if (on.caller.server->captures.status(*on.state) == CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_SUCCESS;
  on.caller.server->captures.invalidate(*on.state);
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult wait_for_stream(const StreamCall& on) {
  if (on.caller.state->captures.load(std::memory_order_relaxed) == 0) {
    if (stream_idle(*on.state)) return finished(on);
    CUresult error = CUDA_SUCCESS;
    if (on.caller.server->posted_uploads.notify_stream_done(on.caller, *on.state, on.wire_stream, error))
      return error ? leave(on.caller, error) : finished(on);
  }
  uint64_t up_to = on.state->work.load(std::memory_order_relaxed);
  CUresult result = forward::cuStreamSynchronize(on.caller, on.stream());
  if (result == CUDA_SUCCESS) note_stream_done(*on.caller.server, *on.state, up_to);
  return leave(on.caller, result);
}

CUresult synchronise_stream(CUstream stream, bool per_thread) {
  StreamCall on(stream, per_thread);
  if (on.error) return on.error;
  if (CUresult error = refuse_captured(on)) return error;
  return wait_for_stream(on);
}

}  // namespace gpuwire::client
