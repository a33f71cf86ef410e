// The creation of a stream, which several calls share.
#pragma once

#include <cuda.h>

#include "client_stub/driver/state/call/caller.hpp"

namespace gpuwire::client {

// Creates a stream in the caller's context. Checks all arguments.
CUresult create_stream(const Caller& caller, CUstream* out, unsigned flags, int priority) noexcept;

}  // namespace gpuwire::client
