// The begin of every call about a stream.
#pragma once

#include <cuda.h>

#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/handle/handle_table.hpp"
#include "client_stub/driver/process/process.hpp"

namespace gpuwire::client {

// Resolves the program's stream argument, and the context of the call: the stream's own, or the current one for the
// default streams. Sends nothing. Later frames execute before_work(), at the latest in the forward functions. `error`
// other than success: the call returns it, and nothing else is set.
struct StreamCall {
  Caller caller;
  uint64_t wire_stream = 0;
  StreamState* state = nullptr;
  CUresult error = CUDA_SUCCESS;

  StreamCall(CUstream given, bool per_thread) noexcept {
    auto handle = reinterpret_cast<uint64_t>(given);
    if (handle > reinterpret_cast<uint64_t>(CU_STREAM_PER_THREAD)) {
      state = handles().find<StreamState>(wire::HandleKind::stream, handle);
      if (!state || !state->context) {
        error = process() ? CUDA_ERROR_INVALID_HANDLE : absent_process();
        return;
      }
      wire_stream = handle;
      caller = enter_context(*state->context);
      error = caller.error;
      return;
    }
    caller = enter(Needs::context);
    error = caller.error;
    if (error) return;
    wire_stream = resolve_stream(caller, given, per_thread, error);
    if (error) return;
    state = find_stream(caller.state, wire_stream);
    if (!state) error = CUDA_ERROR_INVALID_HANDLE;
  }

  // For the forward functions, which pass the resolved stream unchanged.
  CUstream stream() const noexcept { return reinterpret_cast<CUstream>(wire_stream); }
};

}  // namespace gpuwire::client
