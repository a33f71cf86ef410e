#include "server/software_device/driver/graph/graph_object.hpp"

#include <algorithm>
#include <set>
#include <type_traits>

#include "server/software_device/driver/call/driver_state.hpp"
#include "server/software_device/driver/stream/memory_operations.hpp"
#include "server/software_device/driver/stream/work_observer.hpp"

namespace gpuwire::software_device {
namespace {

constexpr int kChildDepthMax = 64;

tl::expected<void, CUresult> append_steps(const Graph& graph, const std::vector<size_t>& entry, CUgraphNode child,
                                          int depth, std::vector<GraphExec::Step>& steps, std::vector<size_t>& leaves);

tl::expected<std::shared_ptr<const ConditionalBodies>, CUresult> work_of_bodies(const ConditionalGraphs& conditional,
                                                                                int depth);

// Appends a node's steps and returns the last ones: the node itself, or the leaves of its child graph.
tl::expected<std::vector<size_t>, CUresult> append_node(const GraphNode& node, std::vector<size_t> dependencies,
                                                        CUgraphNode child, int depth,
                                                        std::vector<GraphExec::Step>& steps) {
  if (const auto* const inner = std::get_if<ChildGraph>(&node.payload)) {
    std::vector<size_t> leaves;
    if (auto result =
            append_steps(*inner->graph, dependencies, child != nullptr ? child : node.handle, depth + 1, steps, leaves);
        !result) {
      return tl::unexpected(result.error());
    }
    return leaves.empty() ? dependencies : leaves;
  }
  if (const auto* const conditional = std::get_if<ConditionalGraphs>(&node.payload)) {
    auto bodies = work_of_bodies(*conditional, depth);
    if (!bodies) {
      return tl::unexpected(bodies.error());
    }
    steps.push_back({.node = child == nullptr ? node.handle : nullptr,
                     .child = child,
                     .context = node.context,
                     .dependencies = std::move(dependencies)});
    steps.back().payload = ConditionalWork{conditional->condition, conditional->type, *std::move(bodies)};
    return std::vector<size_t>{steps.size() - 1};
  }
  steps.push_back({.node = child == nullptr ? node.handle : nullptr,
                   .child = child,
                   .payload = node.payload,
                   .context = node.context,
                   .dependencies = std::move(dependencies)});
  return std::vector<size_t>{steps.size() - 1};
}

tl::expected<void, CUresult> append_steps(const Graph& graph, const std::vector<size_t>& entry, CUgraphNode child,
                                          int depth, std::vector<GraphExec::Step>& steps, std::vector<size_t>& leaves) {
  if (depth > kChildDepthMax) {
    return tl::unexpected(CUDA_ERROR_INVALID_VALUE);
  }
  std::map<CUgraphNode, std::vector<size_t>> ends;
  std::set<size_t> unused;
  // Each round places the nodes whose dependencies have all been placed. If a round places none, there is a cycle.
  std::vector<std::shared_ptr<GraphNode>> left = graph.nodes;
  while (!left.empty()) {
    std::vector<std::shared_ptr<GraphNode>> later;
    for (const auto& node : left) {
      if (!std::all_of(node->dependencies.begin(), node->dependencies.end(),
                       [&](CUgraphNode each) { return ends.count(each) != 0; })) {
        later.push_back(node);
        continue;
      }
      std::vector<size_t> dependencies = node->dependencies.empty() ? entry : std::vector<size_t>{};
      for (const CUgraphNode each : node->dependencies) {
        dependencies.insert(dependencies.end(), ends[each].begin(), ends[each].end());
        for (const size_t used : ends[each]) {
          unused.erase(used);
        }
      }
      auto end = append_node(*node, std::move(dependencies), child, depth, steps);
      if (!end) {
        return tl::unexpected(end.error());
      }
      unused.insert(end->begin(), end->end());
      ends[node->handle] = *std::move(end);
    }
    if (later.size() == left.size()) {
      return tl::unexpected(CUDA_ERROR_INVALID_VALUE);
    }
    left = std::move(later);
  }
  leaves.assign(unused.begin(), unused.end());
  return {};
}

bool is_work(const NodePayload& payload) {
  return std::holds_alternative<CopyWork>(payload) || std::holds_alternative<FillWork>(payload) ||
         std::holds_alternative<KernelWork>(payload) || std::holds_alternative<HostWork>(payload) ||
         std::holds_alternative<MemoryOperationsWork>(payload) || std::holds_alternative<ConditionalWork>(payload);
}

Work work_of(const NodePayload& payload) {
  return std::visit(
      [](const auto& each) -> Work {
        if constexpr (std::is_constructible_v<Work, decltype(each)>) {
          return each;
        } else {
          return EmptyWork{};
        }
      },
      payload);
}

// Returns the work of conditional bodies as lists of plain work: bodies contain no events and allocate nothing (CUDA
// driver API, CUDA_CONDITIONAL_NODE_PARAMS).
tl::expected<std::shared_ptr<const ConditionalBodies>, CUresult> work_of_bodies(const ConditionalGraphs& conditional,
                                                                                int depth) {
  auto out = std::make_shared<ConditionalBodies>();
  for (const auto& body : conditional.bodies) {
    std::vector<GraphExec::Step> steps;
    std::vector<size_t> leaves;
    if (const auto result = append_steps(*body, {}, nullptr, depth + 1, steps, leaves); !result) {
      return tl::unexpected(result.error());
    }
    std::vector<Work>& work = out->work.emplace_back();
    for (const GraphExec::Step& step : steps) {
      if (!is_work(step.payload) && !std::holds_alternative<EmptyWork>(step.payload)) {
        return tl::unexpected(CUDA_ERROR_INVALID_VALUE);
      }
      work.push_back(work_of(step.payload));
    }
  }
  return out;
}

OperationPtr submit_step(Context& context, const GraphExec::Step& step, std::vector<OperationPtr> dependencies) {
  if (const auto* const wait = std::get_if<WaitForEvent>(&step.payload)) {
    const std::lock_guard lock(wait->event->mutex);
    dependencies.push_back(wait->event->recorded);
  }
  OperationPtr operation = step.enabled && is_work(step.payload)
                               ? context.submit_unordered(work_of(step.payload), dependencies)
                               : driver().scheduler.submit(nullptr, dependencies);
  if (const auto* const record = std::get_if<RecordEvent>(&step.payload)) {
    const std::lock_guard lock(record->event->mutex);
    record->event->recorded = operation;
    record->event->captured.store(false, std::memory_order_release);  // measured on driver 580
  }
  return operation;
}

}  // namespace

std::mutex& graph_mutex() noexcept {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

GraphNode* Graph::find(CUgraphNode wanted) const {
  const auto found = std::find_if(nodes.begin(), nodes.end(), [&](const auto& node) { return node->handle == wanted; });
  return found == nodes.end() ? nullptr : found->get();
}

std::shared_ptr<Graph> make_graph() {
  auto graph = std::make_shared<Graph>();
  graph->handle = driver().graphs.reserve();
  driver().graphs.insert(graph->handle, graph);
  return graph;
}

tl::expected<std::shared_ptr<GraphNode>, CUresult> add_node(Graph& graph, NodePayload payload,
                                                            std::weak_ptr<Context> context,
                                                            std::vector<CUgraphNode> dependencies) {
  const std::set<CUgraphNode> distinct(dependencies.begin(), dependencies.end());
  if (distinct.size() != dependencies.size() ||
      std::any_of(distinct.begin(), distinct.end(), [&](CUgraphNode each) { return graph.find(each) == nullptr; })) {
    return tl::unexpected(CUDA_ERROR_INVALID_VALUE);
  }
  auto node = std::make_shared<GraphNode>();
  node->handle = driver().graph_nodes.reserve();
  node->graph = graph.handle;
  node->payload = std::move(payload);
  node->context = std::move(context);
  node->dependencies = std::move(dependencies);
  driver().graph_nodes.insert(node->handle, node);
  graph.nodes.push_back(node);
  return node;
}

void forget_graph(Graph& graph) {
  driver().graphs.take(graph.handle);
  for (const auto& node : graph.nodes) {
    driver().graph_nodes.take(node->handle);
    if (const auto* const child = std::get_if<ChildGraph>(&node->payload)) {
      forget_graph(*child->graph);
    }
    if (const auto* const conditional = std::get_if<ConditionalGraphs>(&node->payload)) {
      for (const auto& body : conditional->bodies) {
        forget_graph(*body);
      }
    }
  }
}

std::shared_ptr<Graph> clone_graph(const Graph& graph) {
  auto clone = make_graph();
  std::map<CUgraphNode, CUgraphNode> handles;
  for (const auto& node : graph.nodes) {
    NodePayload payload = node->payload;
    if (auto* const child = std::get_if<ChildGraph>(&payload)) {
      child->graph = clone_graph(*child->graph);
      child->graph->child = true;
    }
    const auto made = *add_node(*clone, std::move(payload), node->context, {});
    made->original = node->handle;
    made->attributes = node->attributes;
    handles[node->handle] = made->handle;
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const CUgraphNode each : graph.nodes[i]->dependencies) {
      clone->nodes[i]->dependencies.push_back(handles[each]);
    }
  }
  return clone;
}

tl::expected<std::vector<GraphExec::Step>, CUresult> flatten(const Graph& graph) {
  std::vector<GraphExec::Step> steps;
  std::vector<size_t> leaves;
  if (const auto result = append_steps(graph, {}, nullptr, 0, steps, leaves); !result) {
    return tl::unexpected(result.error());
  }
  return steps;
}

namespace {

using Allocations = std::vector<std::shared_ptr<GraphAllocation>>;

// Returns the memory that the launch allocates without freeing it, and the memory that it frees, in the order of the
// calls. All of it must exist until the launch is done, even if it is freed, destroyed or updated meanwhile.
tl::expected<Allocations, CUresult> note_memory(const GraphExec& exec) {
  Allocations used;
  std::set<uint64_t> freed;
  for (const GraphExec::Step& step : exec.steps) {
    if (const auto* const work = std::get_if<FreeMemory>(&step.payload)) {
      freed.insert(work->address);
    }
  }
  const bool frees_first = (exec.flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
  for (const GraphExec::Step& step : exec.steps) {
    const auto* const work = std::get_if<AllocateMemory>(&step.payload);
    if (work != nullptr && is_allocated(*work->allocation) && !frees_first) {
      return tl::unexpected(CUDA_ERROR_INVALID_VALUE);
    }
  }
  for (const GraphExec::Step& step : exec.steps) {
    if (const auto* const work = std::get_if<AllocateMemory>(&step.payload)) {
      used.push_back(work->allocation);
      if (freed.erase(work->allocation->address) == 0) {
        note_allocated(work->allocation);
      } else {
        note_freed(*work->allocation);
      }
    }
  }
  for (const uint64_t address : freed) {
    if (const auto other = find_graph_allocation(address)) {
      used.push_back(other);
      note_freed(*other);
    }
  }
  return used;
}

}  // namespace

CUresult launch_graph(Context& context, Stream& stream, GraphExec& exec) {
  for (const GraphExec::Step& step : exec.steps) {
    const auto* const work = std::get_if<MemoryOperationsWork>(&step.payload);
    if (work != nullptr && !have_words(*work)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  auto used = note_memory(exec);
  if (!used) {
    return used.error();
  }
  const WorkObserver* observer = work_observer();
  const auto told = observer != nullptr ? std::make_shared<ObservedWork>(ObservedWork{
                                              .kind = kObservedGraph, .number = observer->given(observer->user)})
                                        : nullptr;
  const auto begin = [conditions = exec.conditions, told] {
    if (told != nullptr) {
      told->start_ns = observed_now_ns();
    }
    for (const auto& condition : conditions) {
      if (condition->assign_initial) {
        condition->value.store(condition->initial, std::memory_order_relaxed);
      }
    }
    return CUDA_SUCCESS;
  };
  const OperationPtr entry = exec.conditions.empty() && told == nullptr
                                 ? context.submit(stream, nullptr, {&exec.last_launch, 1})
                                 : context.submit(stream, begin, {&exec.last_launch, 1});
  std::vector<OperationPtr> operations;
  for (const GraphExec::Step& step : exec.steps) {
    std::vector<OperationPtr> dependencies{entry};
    for (const size_t each : step.dependencies) {
      dependencies.push_back(operations[each]);
    }
    const auto own = step.context.lock();
    operations.push_back(submit_step(own != nullptr ? *own : context, step, std::move(dependencies)));
  }
  Context::Step end;
  if (told != nullptr || !used->empty()) {
    end = [told, observer, used = *std::move(used)] {
      if (told != nullptr) {
        told->end_ns = observed_now_ns();
        observer->done(observer->user, told.get());
      }
      return CUDA_SUCCESS;
    };
  }
  exec.last_launch = context.submit(stream, std::move(end), operations);
  return CUDA_SUCCESS;
}

}  // namespace gpuwire::software_device
