// Copies of graphs with a side in the program's memory: the server's place is put where the program's pointer was.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <vector>

#include "client_stub/driver/state/graph/graph_memory.hpp"
#include "client_stub/driver/state/memory/place.hpp"

namespace gpuwire::client {

// The treatment of pinned memory that kernels of the same graph are likely to get.
enum class Shared : uint8_t {
  with_kernels,  // the device reaches it from now on
  as_it_is,      // it is reached if it was before
};

// Puts places for the program's memory into a node's parameters, and adds the memory that they stand for to `uses`.
// Memory that the server holds at the same address stays as it is.
CUresult to_places(const Caller& caller, CUDA_MEMCPY3D& copy, std::vector<GraphUse>& uses,
                   Shared shared = Shared::with_kernels);
// For the call that sends such parameters.
inline Caller for_graph_copies(Caller caller) noexcept {
  caller.for_graph_copies = true;
  return caller;
}
// The reverse of to_places(), for parameters from the server.
void to_program_memory(const Caller& caller, CUDA_MEMCPY3D& copy) noexcept;

// The capture that a stream takes part in; 0: none. Costs one atomic load while nothing in the context is captured.
uint64_t capture_of(const Caller& caller, uint64_t wire_stream) noexcept;
// Copies in a stream that takes part in a capture. Addresses are the program's; a side in its memory is marked.
CUresult capture_linear(const Caller& caller, uint64_t capture, const Places& places, bool to_program,
                        bool from_program, uint64_t wire_stream);
CUresult capture_box(const Caller& caller, uint64_t capture, CUDA_MEMCPY3D copy, uint64_t wire_stream);

}  // namespace gpuwire::client
