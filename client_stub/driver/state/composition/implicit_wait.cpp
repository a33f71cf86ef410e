// Calls that release memory: cuMemFree, cuMemFreeHost, cuMemHostUnregister, cuArrayDestroy, cuMipmappedArrayDestroy.
// Natively they return when all work of the context has ended (measured on driver 580), and programs rely on it.
#include "client/forward.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/copy/memory_in_flight.hpp"
#include "client_stub/driver/state/host_memory/host_regions.hpp"
#include "client_stub/driver/state/managed_memory/managed_memory.hpp"
#include "client_stub/driver/state/stream/capture.hpp"
#include "client_stub/driver/state/stream/host_callbacks.hpp"

namespace gpuwire::client {
namespace {

// May work in flight write to memory of the program, call a function of it, or wait for an action of it? In the last
// case other threads' calls must proceed meanwhile.
bool concerns_program(ServerSession& server, const ContextState& context) noexcept {
  if (server.managed_memory.any() || server.in_flight.any_writes() || server.host_callbacks.any_to_come() ||
      server.in_flight.standing() != Awaits::nothing)
    return true;
  return server.host_regions.any() && host_writes_under_way(context);
}

}  // namespace

CUresult await_work(const Caller& caller, GivenUp what) noexcept {
  // The rules of captures have been checked before. A wait for the context would end captures that permit this call.
  if (!caller.state || context_idle(*caller.state) || caller.server->captures.any() || in_host_callback())
    return CUDA_SUCCESS;
  ContextState& context = *caller.state;
  if (what == GivenUp::at_server && !concerns_program(*caller.server, context)) {
    // The frame waits at the server, so the reply to a question about earlier work comes after the wait. Cached state
    // would be older.
    caller.server->note_progress();
    return CUDA_SUCCESS;
  }
  const uint64_t up_to = context.work.load(std::memory_order_relaxed);
  caller.server->host_regions.push_known(caller);  // a kernel may be waiting for a write of the program
  const CUresult result = forward::cuCtxSynchronize(caller);
  if (result == CUDA_SUCCESS) note_context_done(context, up_to);
  return result;
}

}  // namespace gpuwire::client
