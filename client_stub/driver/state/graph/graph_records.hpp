// The stub's records of graphs: the program's memory that the copies of each graph, executable graph and capture use.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "client_stub/driver/state/copy/memory_in_flight.hpp"
#include "client_stub/driver/state/graph/graph_memory.hpp"
#include "client_stub/driver/state/session/session_part.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

// Owners are handles of graphs and executable graphs, and numbers of captures, which are no handles. Any thread; one
// leaf lock.
class GraphRecords final : public SessionPart {
 public:
  explicit GraphRecords(SessionParts& parts) noexcept : SessionPart(parts) {}

  // Adds uses of `node` of `owner`; 0 stands for a node that the program does not know yet.
  void add(uint64_t owner, uint64_t node, std::span<const GraphUse> uses);
  // Replaces the uses of a node, whose parameters have changed.
  void replace(uint64_t owner, uint64_t node, std::span<const GraphUse> uses);
  // Adds all uses of `from` and of the graphs inside it to `to`, as uses of `node`, or of the same nodes.
  void copy(uint64_t from, uint64_t to, uint64_t node = 0);
  // Replaces the uses of `to` by all uses of `from`.
  void take_over(uint64_t from, uint64_t to);
  // Notes that the program was given a graph that is inside another one (of a child node, or the body of a conditional
  // one).
  void note_inner(uint64_t owner, uint64_t inner);
  // Notes that `node` is the copy of `original` in the clone `owner`.
  void rename(uint64_t owner, uint64_t original, uint64_t node);
  // Notes the nodes of a graph that the program has got.
  void note_nodes(uint64_t graph, std::span<const CUgraphNode> nodes);
  // Returns the graph of a node, or 0 if it is not known.
  uint64_t graph_of(uint64_t node) const noexcept;
  // Forgets an owner. `nodes` and `inner` get the nodes and inner graphs that the program has, which end with the
  // owner.
  void forget(uint64_t owner, std::vector<uint64_t>& nodes, std::vector<uint64_t>& inner);
  void forget_node(uint64_t node) noexcept;

  // Note that the owner's launches allocate memory at the address, or free an allocation.
  void note_allocation(uint64_t owner, uint64_t address);
  void note_free(uint64_t owner, uint64_t address);
  // Notes that the server's driver may refuse a node when it is to run, so that the driver decides about the owner's
  // launches.
  void note_judged(uint64_t owner);
  // Returns whether the driver decides whether a launch succeeds. This is so after note_judged(), and if a launch
  // leaves memory allocated: the next launch is an error until that memory is freed.
  bool launch_is_judged(uint64_t owner) const;

  // Notes that the owner's launches wait for functions of the program, or for words that it writes.
  void note_awaits(uint64_t owner, Awaits awaits);
  Awaits awaits_of(uint64_t owner) const noexcept;

  // Returns the uses of an executable graph, or null if it has none. The object is the same until the uses change.
  std::shared_ptr<const GraphUses> uses_of(uint64_t owner);

  void ended(SessionEnd) noexcept override {}      // they go with the program's graphs
  void after_fork_in_child() noexcept override {}  // a child does not use it

 private:
  struct NodeUse {
    uint64_t node = 0;
    GraphUse use;
  };
  // Facts about an owner and the graphs inside it.
  struct Whole {
    Awaits awaits = Awaits::nothing;
    bool judged = false;

    bool is_nothing() const noexcept { return awaits == Awaits::nothing && !judged; }
    void join(const Whole& other) noexcept { awaits = awaits | other.awaits, judged = judged || other.judged; }
  };
  struct Record {
    std::vector<NodeUse> uses;
    std::vector<uint64_t> inner;
    // The allocations that the graph itself does not free.
    std::vector<uint64_t> allocations;
    // The facts of any node that the graph has, or has had.
    Whole whole;
    // `uses`, each once. Null if they have changed since.
    std::shared_ptr<const GraphUses> together;
  };
  Whole collect_whole(uint64_t owner, int depth) const noexcept REQUIRES(mutex_);
  void collect(uint64_t owner, std::vector<NodeUse>& out, int depth) const REQUIRES(mutex_);
  void count() noexcept REQUIRES(mutex_) { count_.store(records_.size() + graphs_.size(), std::memory_order_relaxed); }

  mutable Mutex mutex_;
  // The records by owner.
  std::unordered_map<uint64_t, Record> records_ GUARDED_BY(mutex_);
  // The graph of each node.
  std::unordered_map<uint64_t, uint64_t> graphs_ GUARDED_BY(mutex_);
  // The tables' sizes, for the check that they are empty. Relaxed: a thread that uses a graph synchronised with its
  // maker.
  std::atomic<size_t> count_{0};
};

}  // namespace gpuwire::client
