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

  // `node` (0: not known to the program yet) of `owner` uses these.
  void add(uint64_t owner, uint64_t node, std::span<const GraphUse> uses);
  // The node's parameters have changed: these replace its former uses.
  void replace(uint64_t owner, uint64_t node, std::span<const GraphUse> uses);
  // All of `from` and of the graphs inside it: added to the uses of `to`, on behalf of `node`, or of the same nodes.
  void copy(uint64_t from, uint64_t to, uint64_t node = 0);
  // The same in place of the former uses of `to`.
  void take_over(uint64_t from, uint64_t to);
  // The program was given a graph that is inside another one (of a child node, or the body of a conditional one).
  void note_inner(uint64_t owner, uint64_t inner);
  // In the clone `owner`, the node that was `original` is `node`.
  void rename(uint64_t owner, uint64_t original, uint64_t node);
  // The program got these nodes of a graph.
  void note_nodes(uint64_t graph, std::span<const CUgraphNode> nodes);
  // The graph of a node; 0: not known.
  uint64_t graph_of(uint64_t node) const noexcept;
  // The nodes and inner graphs that the program got, which end with it, go to `nodes` and `inner`.
  void forget(uint64_t owner, std::vector<uint64_t>& nodes, std::vector<uint64_t>& inner);
  void forget_node(uint64_t node) noexcept;

  // The owner's launches allocate memory there, or free their allocations.
  void note_allocation(uint64_t owner, uint64_t address);
  void note_free(uint64_t owner, uint64_t address);
  // The owner's launches stand or fall with the server's driver: it may refuse a node when that is to run.
  void note_judged(uint64_t owner);
  // Does the driver's verdict on a launch decide whether that succeeds? So it is where the launch leaves memory behind,
  // which makes the next one an error until that is freed, and after note_judged().
  bool launch_is_judged(uint64_t owner) const;

  // The owner's launches stand for functions of the program, or for words that it writes.
  void note_awaits(uint64_t owner, Awaits awaits);
  Awaits awaits_of(uint64_t owner) const noexcept;

  // For an executable graph; null: it uses none. The same object until the uses change.
  std::shared_ptr<const GraphUses> uses_of(uint64_t owner);

  void ended(SessionEnd) noexcept override {}      // they go with the program's graphs
  void after_fork_in_child() noexcept override {}  // nobody there asks

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
    std::vector<uint64_t> allocations;          // that are not freed by the same graph
    Whole whole;                                // of any node that it has, or has had
    std::shared_ptr<const GraphUses> together;  // `uses`, each once; null: not made since they changed
  };
  Whole collect_whole(uint64_t owner, int depth) const noexcept REQUIRES(mutex_);
  void collect(uint64_t owner, std::vector<NodeUse>& out, int depth) const REQUIRES(mutex_);
  void count() noexcept REQUIRES(mutex_) { count_.store(records_.size() + graphs_.size(), std::memory_order_relaxed); }

  mutable Mutex mutex_;
  std::unordered_map<uint64_t, Record> records_ GUARDED_BY(mutex_);   // by owner
  std::unordered_map<uint64_t, uint64_t> graphs_ GUARDED_BY(mutex_);  // node -> graph
  // The tables' sizes, for the check that they are empty. Relaxed: a thread that uses a graph synchronised with its
  // maker.
  std::atomic<size_t> count_{0};
};

}  // namespace gpuwire::client
