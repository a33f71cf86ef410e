// What all copies ask before they begin.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "client_stub/driver/caller.hpp"

namespace gpuwire::client {

// Does the address belong to device memory that the client knows of?
bool is_device_address(uint64_t address);
// Is all of it managed memory?
bool is_managed_memory(uint64_t address, size_t bytes);
// Is all of it page-locked memory of ours, so that a copy into it may end after the call?
bool is_pinned(const void* memory, size_t bytes);

// CUDA_ERROR_INVALID_VALUE for no address, host memory, and what begins in an allocation, variable or mapped range and leaves it. Sets
// `unknown` for addresses that are in no such range: memory that a graph allocates, for one.
CUresult check_device_range(CUdeviceptr address, size_t bytes, bool& unknown);
// For work at unknown addresses: waits until the server's driver has judged all that was sent, so that leave() tells its verdict.
CUresult await_verdict(const Caller& caller);

// A source on the host is read at once, natively only when the stream gets there. The two differ for page-locked memory that is still
// being written to: by an earlier asynchronous copy, or by a function of the program that the stream is to call. Waits for those.
CUresult settle_source(const Caller& caller, const void* source, size_t bytes, uint64_t stream);

// `blocking` forms are not allowed where a capture may notice them: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED. The others go into the graph, unless
// the capture is invalid.
CUresult refuse_in_capture(const Caller& caller, uint64_t stream, bool blocking);

}  // namespace gpuwire::client
