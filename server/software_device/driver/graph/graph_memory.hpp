// Memory that graphs allocate: at one address for as long as some graph names it.
#pragma once

#include <cstdint>
#include <memory>

#include <cuda.h>
#include <tl/expected.hpp>

namespace gpuwire::software_device {

struct Device;

// Made with the node that allocates it, shared by everything that was made from that node.
struct GraphAllocation {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint64_t buffer_id = 0;
  int device = 0;
  // Itself, between the launch that allocates and the free that follows it, in the order of the calls: the memory
  // outlives its graphs until it is freed. Under the lock of graph_memory.cpp.
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

// CUDA_ERROR_OUT_OF_MEMORY.
tl::expected<std::shared_ptr<GraphAllocation>, CUresult> allocate_for_graph(Device& device, CUcontext context,
                                                                            uint64_t bytes);
// The allocation of a graph that begins there; null: none.
std::shared_ptr<GraphAllocation> find_graph_allocation(uint64_t address);
// A launch that allocates it was submitted. is_allocated(): and it was not freed since.
void note_allocated(const std::shared_ptr<GraphAllocation>& allocation);
bool is_allocated(const GraphAllocation& allocation);
// By a launch, or by the program. False: it is not allocated.
bool note_freed(GraphAllocation& allocation);

}  // namespace gpuwire::software_device
