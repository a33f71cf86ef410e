// The common part of the files about graphs.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/session/session_part.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

// Ends the state of a graph, executable graph or capture at both sides.
void forget_graph(const Caller& caller, uint64_t owner);

// Memory whose addresses the program was given. It is valid as long as the node.
struct NodeStorage {
  // A kernel's parameters.
  std::vector<uint64_t> packed;
  // Pointers to the parameters.
  std::vector<void*> pointers;
  // The bodies of a conditional node.
  std::vector<CUgraph> bodies;
};

// The node storages of one session. Any thread; one leaf lock.
class NodeStorages final : public SessionPart {
 public:
  explicit NodeStorages(SessionParts& parts) noexcept : SessionPart(parts) {}

  NodeStorage& of(uint64_t node);
  void forget(uint64_t node) noexcept;

  void ended(SessionEnd) noexcept override {}      // the program keeps the given pointers
  void after_fork_in_child() noexcept override {}  // a child does not use it

 private:
  Mutex mutex_;
  std::unordered_map<uint64_t, std::unique_ptr<NodeStorage>> by_node_ GUARDED_BY(mutex_);
};

// Notes the memory of an allocating node as device memory.
void note_graph_memory(const Caller& caller, CUdeviceptr address, size_t bytes);

}  // namespace gpuwire::client
