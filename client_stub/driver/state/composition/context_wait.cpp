// Waits for all work of a context: cuCtxSynchronize.
#include "client/forward.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/host_memory/host_regions.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/stream/capture.hpp"

namespace gpuwire::client {

CUresult synchronise_entered(const Caller& caller) noexcept {
  ContextState& context = *caller.state;
  if (in_host_callback()) return CUDA_ERROR_NOT_PERMITTED;
  if (CUresult error = caller.server->captures.permit_synchronisation(context)) return leave(caller, error);
  // No work was sent since the context was last known to be idle.
  if (context_idle(context)) return leave(caller, CUDA_SUCCESS);
  uint64_t up_to = context.work.load(std::memory_order_relaxed);
  // A kernel may be waiting for a write of the program.
  caller.server->host_regions.push(caller);
  CUresult result = forward::cuCtxSynchronize(caller);
  if (result == CUDA_SUCCESS) note_context_done(context, up_to);
  return leave(caller, result);
}

CUresult synchronise_current_context() noexcept {
  Caller caller = enter(Needs::context);
  if (caller.error) return caller.error;
  return synchronise_entered(caller);
}

}  // namespace gpuwire::client
