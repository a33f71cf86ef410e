// Memory that graphs allocate. It keeps its address while a graph refers to it.
#pragma once

#include <cstdint>
#include <memory>

#include <cuda.h>
#include <tl/expected.hpp>

namespace gpuwire::software_device {

struct Device;

// Created with the node that allocates it, and shared by everything that was made from that node.
struct GraphAllocation {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint64_t buffer_id = 0;
  int device = 0;
  // A reference to the object itself, from the launch that allocates to the free that follows it, in the order of the
  // calls, because the memory outlives its graphs until it is freed. Guarded by the lock of graph_memory.cpp.
  std::shared_ptr<GraphAllocation> kept;

  GraphAllocation() = default;
  GraphAllocation(const GraphAllocation&) = delete;
  GraphAllocation& operator=(const GraphAllocation&) = delete;
  ~GraphAllocation();
};

// Payloads of nodes.
struct AllocateMemory {
  std::shared_ptr<GraphAllocation> allocation;
};
struct FreeMemory {
  uint64_t address = 0;
};

// Returns CUDA_ERROR_OUT_OF_MEMORY if there is no room.
tl::expected<std::shared_ptr<GraphAllocation>, CUresult> allocate_for_graph(Device& device, CUcontext context,
                                                                            uint64_t bytes);
// Returns the allocation of a graph that begins at `address`, or null.
std::shared_ptr<GraphAllocation> find_graph_allocation(uint64_t address);
// Records that a launch that allocates the memory was submitted. is_allocated() returns whether it was not freed since.
void note_allocated(const std::shared_ptr<GraphAllocation>& allocation);
bool is_allocated(const GraphAllocation& allocation);
// Records that a launch or the program frees the memory. Returns false if it is not allocated.
bool note_freed(GraphAllocation& allocation);

}  // namespace gpuwire::software_device
