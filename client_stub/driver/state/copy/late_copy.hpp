// Copies to the device whose source is not ready: the stream waits, and the awaited work may change the source. A host
// function of gpuwire takes its turn in the stream and sends the source's content at that time to a block of the
// server. The copy behind the function reads from this block.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/memory/place.hpp"

namespace gpuwire::client {

// Posted; the source belongs to the copy until its stream has come by (MemoryInFlight). CUDA_ERROR_NOT_SUPPORTED or
// CUDA_ERROR_OUT_OF_MEMORY: the server cannot have a block for it, and nothing was sent. Not within a host function.
CUresult copy_late(const Caller& caller, CUdeviceptr destination, const Place& source, uint64_t wire_stream);
// The same from a box in memory of the program to one on the device or in an array.
CUresult copy_late(const Caller& caller, CUDA_MEMCPY3D copy, uint64_t wire_stream);

}  // namespace gpuwire::client
