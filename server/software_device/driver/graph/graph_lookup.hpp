// The common entry code of graph functions, which locks the graphs and finds handles.
#pragma once

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <utility>

#include "server/software_device/driver/call/api.hpp"
#include "server/software_device/driver/graph/graph_object.hpp"

namespace gpuwire::software_device {

// Returns whether all edges are plain. Edges with data are refused.
inline bool plain_edges(const CUgraphEdgeData* edges, size_t count) {
  return edges == nullptr || std::all_of(edges, edges + count, [](const CUgraphEdgeData& edge) {
           return edge.from_port == 0 && edge.to_port == 0 && edge.type == 0;
         });
}

// Runs body(Graph&) with the graphs locked. Returns CUDA_ERROR_INVALID_VALUE for an unknown graph, like NVIDIA's
// driver.
template <typename Body>
CUresult with_graph(CUgraph handle, Body&& body) noexcept {
  return with_driver([&]() -> CUresult {
    const std::lock_guard lock(graph_mutex());
    const auto graph = driver().graphs.find(handle);
    return graph == nullptr ? CUDA_ERROR_INVALID_VALUE : body(*graph);
  });
}

template <typename Body>
CUresult with_node(CUgraphNode handle, Body&& body) noexcept {
  return with_driver([&]() -> CUresult {
    const std::lock_guard lock(graph_mutex());
    const auto node = driver().graph_nodes.find(handle);
    return node == nullptr ? CUDA_ERROR_INVALID_VALUE : body(*node);
  });
}

template <typename Body>
CUresult with_exec(CUgraphExec handle, Body&& body, const char* function = __builtin_FUNCTION()) noexcept {
  return with_driver(
      [&]() -> CUresult {
        const std::lock_guard lock(graph_mutex());
        const auto exec = driver().graph_execs.find(handle);
        return exec == nullptr ? CUDA_ERROR_INVALID_VALUE : body(*exec);
      },
      function);
}

}  // namespace gpuwire::software_device
