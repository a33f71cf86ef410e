// Copy nodes of graphs.
#include <vector>

#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client_stub/driver/state/graph/graph_copies.hpp"
#include "client_stub/driver/state/graph/graph_records.hpp"
#include "client_stub/driver/state/session/server_session.hpp"

namespace gpuwire::client {
namespace hand {
namespace {

// The parameters of a copy node for the server: places stand for the program's memory.
struct Translated {
  CUDA_MEMCPY3D copy{};
  std::vector<GraphUse> uses;
  CUresult error = CUDA_ERROR_INVALID_VALUE;

  Translated(const Caller& caller, const CUDA_MEMCPY3D* given) {
    if (!given) return;
    copy = *given;
    error = to_places(caller, copy, uses);
  }
};

uint64_t word_of_node(CUgraphNode node) { return reinterpret_cast<uint64_t>(node); }

}  // namespace

CUresult cuGraphAddMemcpyNode(const Caller& caller, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                              size_t count, const CUDA_MEMCPY3D* parameters, CUcontext context) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  Translated translated(caller, parameters);
  if (translated.error) return translated.error;
  CUresult result = forward::cuGraphAddMemcpyNode(for_graph_copies(caller), out, graph, dependencies, count,
                                                  &translated.copy, context);
  if (result == CUDA_SUCCESS)
    caller.server->graph_records.add(reinterpret_cast<uint64_t>(graph), word_of_node(*out), translated.uses);
  return result;
}

CUresult cuGraphMemcpyNodeGetParams(const Caller& caller, CUgraphNode node, CUDA_MEMCPY3D* out) {
  CUresult result = forward::cuGraphMemcpyNodeGetParams(caller, node, out);
  if (result == CUDA_SUCCESS) to_program_memory(caller, *out);
  return result;
}

CUresult cuGraphMemcpyNodeSetParams(const Caller& caller, CUgraphNode node, const CUDA_MEMCPY3D* parameters) {
  Translated translated(caller, parameters);
  if (translated.error) return translated.error;
  uint64_t graph = caller.server->graph_records.graph_of(word_of_node(node));
  // If the program did not get the node from the client, the node's graph is unknown, so no record of a graph can hold
  // the memory.
  if (!graph && !translated.uses.empty()) return CUDA_ERROR_NOT_SUPPORTED;
  CUresult result = forward::cuGraphMemcpyNodeSetParams(for_graph_copies(caller), node, &translated.copy);
  if (result == CUDA_SUCCESS && graph) caller.server->graph_records.replace(graph, word_of_node(node), translated.uses);
  return result;
}

CUresult cuGraphExecMemcpyNodeSetParams(const Caller& caller, CUgraphExec exec, CUgraphNode node,
                                        const CUDA_MEMCPY3D* parameters, CUcontext context) {
  Translated translated(caller, parameters);
  if (translated.error) return translated.error;
  CUresult result =
      forward::cuGraphExecMemcpyNodeSetParams(for_graph_copies(caller), exec, node, &translated.copy, context);
  if (result == CUDA_SUCCESS)
    caller.server->graph_records.replace(reinterpret_cast<uint64_t>(exec), word_of_node(node), translated.uses);
  return result;
}

}  // namespace hand
}  // namespace gpuwire::client
