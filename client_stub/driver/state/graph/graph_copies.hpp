// Copies in graphs from or to the program's memory: the client replaces the program's pointer by the server's place.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <vector>

#include "client_stub/driver/state/graph/graph_memory.hpp"
#include "client_stub/driver/state/memory/place.hpp"

namespace gpuwire::client {

// The treatment of pinned memory that kernels of the same graph may use.
enum class Shared : uint8_t {
  // The device can reach it from now on.
  with_kernels,
  // The device can reach it only if it could before.
  as_it_is,
};

// Replaces the program's memory in a node's parameters by places, and adds the memory to `uses`. Memory that the server
// holds at the same address is unchanged.
CUresult to_places(const Caller& caller, CUDA_MEMCPY3D& copy, std::vector<GraphUse>& uses,
                   Shared shared = Shared::with_kernels);
// Returns the caller for the call that sends such parameters.
inline Caller for_graph_copies(Caller caller) noexcept {
  caller.for_graph_copies = true;
  return caller;
}
// The reverse of to_places(), for parameters from the server.
void to_program_memory(const Caller& caller, CUDA_MEMCPY3D& copy) noexcept;

// Returns the capture of a stream; 0: none. Costs one atomic load while nothing in the context is captured.
uint64_t capture_of(const Caller& caller, uint64_t wire_stream) noexcept;
// Copies in a capturing stream. Addresses are the program's; a side in its memory is marked.
CUresult capture_linear(const Caller& caller, uint64_t capture, const Places& places, bool to_program,
                        bool from_program, uint64_t wire_stream);
CUresult capture_box(const Caller& caller, uint64_t capture, CUDA_MEMCPY3D copy, uint64_t wire_stream);

}  // namespace gpuwire::client
