// What the files about graphs share.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <vector>

#include "client_stub/driver/caller.hpp"

namespace gpuwire::client {

// A graph, executable graph or capture has ended: everything that is kept of it ends at both sides.
void forget_graph(const Caller& caller, uint64_t owner);

// What the program was given pointers to: valid as long as the node.
struct NodeStorage {
  std::vector<uint64_t> packed;   // a kernel's parameters
  std::vector<void*> pointers;    // into them
  std::vector<CUgraph> bodies;    // of a conditional node
};
NodeStorage& node_storage(uint64_t node);
void forget_node_storage(uint64_t node) noexcept;

// The memory of an allocating node is device memory from here on.
void note_graph_memory(const Caller& caller, CUdeviceptr address, size_t bytes);

// User objects: references move with the graphs.
void copy_user_objects(uint64_t from, uint64_t to);
void release_user_objects(uint64_t owner);
// An executable graph was launched: what it holds is not released before that is done.
void note_user_object_launch(uint64_t exec, uint64_t wire_stream) noexcept;

}  // namespace gpuwire::client
