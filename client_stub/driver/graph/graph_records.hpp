// What the stub keeps of graphs: which of the program's memory the copies of each graph, executable graph and capture
// use.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "client_stub/driver/graph/graph_memory.hpp"
#include "client_stub/driver/session/session_part.hpp"

namespace gpuwire::client {

// Owners are handles of graphs and executable graphs, and numbers of captures, which are no handles. Any thread; one
// leaf lock.
class GraphRecords final : public SessionPart {
 public:
  explicit GraphRecords(SessionParts& parts) noexcept : SessionPart(parts) {}

  // `node` (0: not known to the program yet) of `owner` uses these.
  void add(uint64_t owner, uint64_t node, std::span<const GraphUse> uses);
  // The node's parameters have changed: these instead of what it used.
  void replace(uint64_t owner, uint64_t node, std::span<const GraphUse> uses);
  // All of `from` and of the graphs inside it: added to what `to` uses, on behalf of `node`, or of the same nodes.
  void copy(uint64_t from, uint64_t to, uint64_t node = 0);
  // The same in place of what `to` used.
  void take_over(uint64_t from, uint64_t to);
  // The program was given a graph that is inside another one (of a child node, or the body of a conditional one).
  void note_inner(uint64_t owner, uint64_t inner);
  // In the clone `owner`, the node that was `original` is `node`.
  void rename(uint64_t owner, uint64_t original, uint64_t node);
  // The program was told of these nodes of a graph.
  void note_nodes(uint64_t graph, std::span<const CUgraphNode> nodes);
  // The graph of a node; 0: not known.
  uint64_t graph_of(uint64_t node) const noexcept;
  // The nodes and inner graphs that the program was told of, which end with it, go to `nodes` and `inner`.
  void forget(uint64_t owner, std::vector<uint64_t>& nodes, std::vector<uint64_t>& inner);
  void forget_node(uint64_t node) noexcept;

  // The owner's launches allocate memory there, or free what they have allocated.
  void note_allocation(uint64_t owner, uint64_t address);
  void note_free(uint64_t owner, uint64_t address);
  // Does a launch leave memory behind, so that the next one is an error until that is freed?
  bool leaves_memory(uint64_t owner) const;

  // Each range once.
  std::vector<GraphUse> uses_of(uint64_t owner) const;

  void ended(SessionEnd) noexcept override {}      // they go with the program's graphs
  void after_fork_in_child() noexcept override {}  // nobody there asks

 private:
  struct NodeUse {
    uint64_t node = 0;
    GraphUse use;
  };
  struct Record {
    std::vector<NodeUse> uses;
    std::vector<uint64_t> inner;
    std::vector<uint64_t> allocations;  // that are not freed by the same graph
  };
  void collect(uint64_t owner, std::vector<NodeUse>& out, int depth) const;
  void count() noexcept { count_.store(records_.size() + graphs_.size(), std::memory_order_relaxed); }

  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, Record> records_;   // by owner
  std::unordered_map<uint64_t, uint64_t> graphs_;  // node -> graph
  // What the tables hold, for the check that there is nothing. Relaxed: who uses a graph synchronised with whoever made
  // it.
  std::atomic<size_t> count_{0};
};

}  // namespace gpuwire::client
