// The beginning of every call about an event.
#pragma once

#include <cuda.h>

#include "client_stub/driver/process/process.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/stream/stream.hpp"

namespace gpuwire::client {

// Looks the event up; the call belongs to the event's context. Sends nothing. If `error` is not success, it is the
// call's result, and nothing else is set.
struct EventCall {
  Caller caller;
  EventState* state = nullptr;
  CUresult error = CUDA_SUCCESS;

  explicit EventCall(CUevent event) noexcept {
    state = find_event(event);
    if (!state || !state->context) {
      error = process() ? CUDA_ERROR_INVALID_HANDLE : absent_process();
      return;
    }
    caller = enter_context(*state->context);
    error = caller.error;
  }
};

}  // namespace gpuwire::client
