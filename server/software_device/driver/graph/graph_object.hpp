// Graphs: work and its order as data. One mutex guards all graphs and captures, because they are built rarely and
// launched often.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <variant>
#include <vector>

#include <cuda.h>
#include <tl/expected.hpp>

#include "server/software_device/driver/graph/graph_memory.hpp"
#include "server/software_device/driver/stream/operation.hpp"
#include "server/software_device/driver/stream/stream_work.hpp"

namespace gpuwire::software_device {

struct Graph;

struct ChildGraph {
  std::shared_ptr<Graph> graph;
};
struct RecordEvent {
  std::shared_ptr<Event> event;
};
struct WaitForEvent {
  std::shared_ptr<Event> event;
};

// A conditional node. In executable graphs, ConditionalWork takes its place.
struct ConditionalGraphs {
  std::shared_ptr<Condition> condition;
  CUgraphConditionalNodeType type = CU_GRAPH_COND_TYPE_IF;
  std::vector<std::shared_ptr<Graph>> bodies;
};

using NodePayload =
    std::variant<EmptyWork, CopyWork, FillWork, KernelWork, HostWork, ChildGraph, RecordEvent, WaitForEvent,
                 MemoryOperationsWork, AllocateMemory, FreeMemory, ConditionalWork, ConditionalGraphs>;

struct GraphNode {
  CUgraphNode handle = nullptr;
  CUgraph graph = nullptr;
  NodePayload payload;
  std::weak_ptr<Context> context;  // the context of its work; empty: the context of the launch
  std::vector<CUgraphNode> dependencies;
  CUgraphNode original = nullptr;                    // in a clone: the node from which it was made
  std::map<int, CUlaunchAttributeValue> attributes;  // of a kernel, by CUlaunchAttributeID
  std::vector<CUgraph> body_handles;                 // of a conditional node, for the program
  std::vector<void*> parameter_pointers;  // pointers into a kernel's parameters, for cuGraphKernelNodeGetParams
};

struct Graph {
  CUgraph handle = nullptr;
  bool child = false;  // a node of another graph owns it
  std::vector<std::shared_ptr<Condition>> conditions;
  std::vector<std::shared_ptr<GraphNode>> nodes;  // in the order of their creation

  GraphNode* find(CUgraphNode node) const;
};

// An executable graph: a list of steps in which every node comes after its dependencies.
struct GraphExec {
  struct Step {
    // The node of the graph from which this one was made; null for nodes of child graphs.
    CUgraphNode node = nullptr;
    // The node of that graph whose child graph contains this step; null for the graph's own nodes.
    CUgraphNode child = nullptr;
    NodePayload payload;
    std::weak_ptr<Context> context;
    std::vector<size_t> dependencies;  // indices of earlier steps
    bool enabled = true;
  };
  CUgraphExec handle = nullptr;
  cuuint64_t flags = 0;
  std::vector<Step> steps;
  std::vector<std::shared_ptr<Condition>> conditions;
  OperationPtr last_launch;  // launches of one executable graph run one after the other
};

std::mutex& graph_mutex() noexcept;

// --- Lock: graph_mutex is held for all of these

std::shared_ptr<Graph> make_graph();
// Returns CUDA_ERROR_INVALID_VALUE unless the dependencies are nodes of the graph, each listed once.
tl::expected<std::shared_ptr<GraphNode>, CUresult> add_node(Graph& graph, NodePayload payload,
                                                            std::weak_ptr<Context> context,
                                                            std::vector<CUgraphNode> dependencies);
void forget_graph(Graph& graph);
std::shared_ptr<Graph> clone_graph(const Graph& graph);
// Returns CUDA_ERROR_INVALID_VALUE if the graph has a cycle.
tl::expected<std::vector<GraphExec::Step>, CUresult> flatten(const Graph& graph);

// Appends the graph to the stream. Returns CUDA_ERROR_INVALID_VALUE if memory of an earlier launch was not freed.
CUresult launch_graph(Context& context, Stream& stream, GraphExec& exec);

}  // namespace gpuwire::software_device
