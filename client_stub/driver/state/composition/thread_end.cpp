// The end of a thread of the program.
#include "client/forward.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/memory/cached_memory.hpp"
#include "client_stub/driver/state/session/server_session.hpp"

namespace gpuwire::client {

void end_own_streams(const ThreadState& thread) noexcept {
  for (const auto& own : thread.own_streams) {
    if (!known_handle(wire::HandleKind::stream, own.stream) || !own.context->alive.load(std::memory_order_relaxed))
      continue;
    if (!own.announced) {
      forget_stream_handle(own.stream);
      continue;
    }
    Caller caller = own.context->server->own_caller();
    caller.state = own.context;
    caller.context_handle = own.context->base->handle;
    caller.context = uint32_t(own.context->handle);
    caller.server->cached_memory.give_back_of_stream(own.stream);
    forward::cuStreamDestroy_v2(caller, reinterpret_cast<CUstream>(own.stream));
  }
}

}  // namespace gpuwire::client
