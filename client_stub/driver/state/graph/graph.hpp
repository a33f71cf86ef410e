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

// A graph, executable graph or capture has ended: everything that is kept of it ends at both sides.
void forget_graph(const Caller& caller, uint64_t owner);

// Memory whose addresses the program was given: valid as long as the node.
struct NodeStorage {
  std::vector<uint64_t> packed;  // a kernel's parameters
  std::vector<void*> pointers;   // into them
  std::vector<CUgraph> bodies;   // of a conditional node
};

// Those of one session. Any thread; one leaf lock.
class NodeStorages final : public SessionPart {
 public:
  explicit NodeStorages(SessionParts& parts) noexcept : SessionPart(parts) {}

  NodeStorage& of(uint64_t node);
  void forget(uint64_t node) noexcept;

  void ended(SessionEnd) noexcept override {}      // the program keeps the given pointers
  void after_fork_in_child() noexcept override {}  // nobody there asks

 private:
  Mutex mutex_;
  std::unordered_map<uint64_t, std::unique_ptr<NodeStorage>> by_node_ GUARDED_BY(mutex_);
};

// The memory of an allocating node is device memory from here on.
void note_graph_memory(const Caller& caller, CUdeviceptr address, size_t bytes);

}  // namespace gpuwire::client
