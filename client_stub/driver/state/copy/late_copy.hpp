// Copies to the device whose source is not ready: the stream waits, and the awaited work may change the source. A host
// function of gpuwire takes its turn in the stream and sends the source's content at that time to a block of the
// server. The copy behind the function reads from this block.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/memory/place.hpp"

namespace gpuwire::client {

// Posts the copy; MemoryInFlight holds the source until the stream has read it. CUDA_ERROR_NOT_SUPPORTED or
// CUDA_ERROR_OUT_OF_MEMORY: the server cannot have a block for the source, and nothing was sent. Precondition: not in a
// host function.
CUresult copy_late(const Caller& caller, CUdeviceptr destination, const Place& source, uint64_t wire_stream);
// As above, from a box in memory of the program to a box on the device or in an array.
CUresult copy_late(const Caller& caller, CUDA_MEMCPY3D copy, uint64_t wire_stream);

}  // namespace gpuwire::client
