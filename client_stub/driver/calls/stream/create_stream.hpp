// Making a stream, for the calls that make one.
#pragma once

#include <cuda.h>

#include "client_stub/driver/state/call/caller.hpp"

namespace gpuwire::client {

// A stream in the caller's context. `out` is not null; flags and priority are checked here.
CUresult create_stream(const Caller& caller, CUstream* out, unsigned flags, int priority) noexcept;

}  // namespace gpuwire::client
