// Graphs: their nodes and edges.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "server/software_device/driver/graph/graph_lookup.hpp"
#include "server/software_device/driver/graph/graph_payload.hpp"
#include "server/software_device/driver/call/refusal.hpp"

using namespace gpuwire::software_device;

namespace {

// Returns a list as CUDA does: without a buffer only the number of items; with a buffer as many items as fit, and null
// in the rest of the buffer.
template <typename Handle>
CUresult give_list(const std::vector<Handle>& list, Handle* out, size_t* count) {
  if (count == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (out != nullptr) {
    for (size_t i = 0; i < *count; ++i) {
      out[i] = i < list.size() ? list[i] : nullptr;
    }
    *count = std::min(*count, list.size());
  } else {
    *count = list.size();
  }
  return CUDA_SUCCESS;
}

std::vector<CUgraphNode> dependents_of(const GraphNode& node) {
  std::vector<CUgraphNode> out;
  const auto graph = driver().graphs.find(node.graph);
  for (const auto& other : graph == nullptr ? std::vector<std::shared_ptr<GraphNode>>{} : graph->nodes) {
    if (std::find(other->dependencies.begin(), other->dependencies.end(), node.handle) != other->dependencies.end()) {
      out.push_back(other->handle);
    }
  }
  return out;
}

void clear_edges(CUgraphEdgeData* edges, const size_t* count) {
  if (edges != nullptr && count != nullptr) {
    std::fill(edges, edges + *count, CUgraphEdgeData{});
  }
}

CUresult add_edges(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  return with_graph(handle, [&](Graph& graph) -> CUresult {
    if (count != 0 && (from == nullptr || to == nullptr)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; ++i) {
      GraphNode* const target = graph.find(to[i]);
      if (target == nullptr || graph.find(from[i]) == nullptr || from[i] == to[i] ||
          std::find(target->dependencies.begin(), target->dependencies.end(), from[i]) != target->dependencies.end()) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      target->dependencies.push_back(from[i]);
    }
    return CUDA_SUCCESS;
  });
}

CUresult remove_edges(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  return with_graph(handle, [&](Graph& graph) -> CUresult {
    for (size_t i = 0; i < count; ++i) {
      GraphNode* const target = graph.find(to[i]);
      if (target == nullptr || std::erase(target->dependencies, from[i]) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
      }
    }
    return CUDA_SUCCESS;
  });
}

CUresult get_edges(CUgraph handle, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  return with_graph(handle, [&](Graph& graph) -> CUresult {
    std::vector<CUgraphNode> starts, ends;
    for (const auto& node : graph.nodes) {
      for (const CUgraphNode each : node->dependencies) {
        starts.push_back(each);
        ends.push_back(node->handle);
      }
    }
    if (count == nullptr || (from == nullptr) != (to == nullptr)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    size_t room = *count;
    give_list(starts, from, count);
    return give_list(ends, to, from == nullptr ? count : &room);
  });
}

}  // namespace

CUresult cuGraphCreate(CUgraph* out, unsigned int flags) {
  return with_driver([&]() -> CUresult {
    if (out == nullptr || flags != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::lock_guard lock(graph_mutex());
    *out = make_graph()->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphDestroy(CUgraph handle) {
  return with_graph(handle, [](Graph& graph) -> CUresult {
    if (graph.child) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (is_captured_into(graph)) {
      return CUDA_ERROR_ILLEGAL_STATE;
    }
    forget_graph(graph);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphClone(CUgraph* out, CUgraph handle) {
  return with_graph(handle, [&](Graph& graph) -> CUresult {
    if (out == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (cannot_be_copied(graph)) {
      return not_supported("a copy of a graph that allocates or decides");
    }
    *out = clone_graph(graph)->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphNodeFindInClone(CUgraphNode* out, CUgraphNode original, CUgraph handle) {
  return with_graph(handle, [&](Graph& graph) -> CUresult {
    const auto found = std::find_if(graph.nodes.begin(), graph.nodes.end(),
                                    [&](const auto& node) { return node->original == original; });
    if (out == nullptr || original == nullptr || found == graph.nodes.end()) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *out = (*found)->handle;
    return CUDA_SUCCESS;
  });
}

// Writes the graph in the language of graphviz, without the details that NVIDIA's driver adds.
CUresult cuGraphDebugDotPrint(CUgraph handle, const char* path, unsigned int) {
  return with_graph(handle, [&](Graph& graph) -> CUresult {
    std::FILE* const file = path == nullptr ? nullptr : std::fopen(path, "we");
    if (file == nullptr) {
      return path == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OPERATING_SYSTEM;
    }
    std::fprintf(file, "digraph graph_%p {\n", static_cast<void*>(graph.handle));
    for (const auto& node : graph.nodes) {
      std::fprintf(file, "\"%p\" [label=\"type %d\"];\n", static_cast<void*>(node->handle),
                   static_cast<int>(type_of(node->payload)));
      for (const CUgraphNode each : node->dependencies) {
        std::fprintf(file, "\"%p\" -> \"%p\";\n", static_cast<void*>(each), static_cast<void*>(node->handle));
      }
    }
    std::fputs("}\n", file);
    return std::fclose(file) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
  });
}

CUresult cuGraphDestroyNode(CUgraphNode handle) {
  return with_node(handle, [&](GraphNode& node) -> CUresult {
    const auto graph = driver().graphs.find(node.graph);
    if (graph == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    for (const auto& other : graph->nodes) {
      std::erase(other->dependencies, handle);
    }
    if (const auto* const child = std::get_if<ChildGraph>(&node.payload)) {
      forget_graph(*child->graph);
    }
    driver().graph_nodes.take(handle);
    std::erase_if(graph->nodes, [&](const auto& other) { return other->handle == handle; });
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* out, size_t* count) {
  return with_graph(handle, [&](Graph& graph) {
    std::vector<CUgraphNode> all;
    for (const auto& node : graph.nodes) {
      all.push_back(node->handle);
    }
    return give_list(all, out, count);
  });
}

CUresult cuGraphGetRootNodes(CUgraph handle, CUgraphNode* out, size_t* count) {
  return with_graph(handle, [&](Graph& graph) {
    std::vector<CUgraphNode> roots;
    for (const auto& node : graph.nodes) {
      if (node->dependencies.empty()) {
        roots.push_back(node->handle);
      }
    }
    return give_list(roots, out, count);
  });
}

CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  return get_edges(graph, from, to, count);
}
CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* edges, size_t* count) {
  const CUresult result = get_edges(graph, from, to, count);
  if (result == CUDA_SUCCESS && from != nullptr) {
    clear_edges(edges, count);
  }
  return result;
}

CUresult cuGraphNodeGetDependencies(CUgraphNode handle, CUgraphNode* out, size_t* count) {
  return with_node(handle, [&](GraphNode& node) { return give_list(node.dependencies, out, count); });
}
CUresult cuGraphNodeGetDependencies_v2(CUgraphNode handle, CUgraphNode* out, CUgraphEdgeData* edges, size_t* count) {
  const CUresult result = cuGraphNodeGetDependencies(handle, out, count);
  if (result == CUDA_SUCCESS && out != nullptr) {
    clear_edges(edges, count);
  }
  return result;
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode handle, CUgraphNode* out, size_t* count) {
  return with_node(handle, [&](GraphNode& node) { return give_list(dependents_of(node), out, count); });
}
CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode handle, CUgraphNode* out, CUgraphEdgeData* edges, size_t* count) {
  const CUresult result = cuGraphNodeGetDependentNodes(handle, out, count);
  if (result == CUDA_SUCCESS && out != nullptr) {
    clear_edges(edges, count);
  }
  return result;
}

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  return add_edges(graph, from, to, count);
}
CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData* edges, size_t count) {
  return plain_edges(edges, count) ? add_edges(graph, from, to, count) : not_supported("a graph's edge with data");
}

CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  return remove_edges(graph, from, to, count);
}
CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                      const CUgraphEdgeData*, size_t count) {
  return remove_edges(graph, from, to, count);
}

CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
  return with_node(handle, [&](GraphNode& node) -> CUresult {
    if (type == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *type = type_of(node.payload);
    return CUDA_SUCCESS;
  });
}
