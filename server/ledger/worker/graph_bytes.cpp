#include "server/ledger/worker/graph_bytes.hpp"

#include <algorithm>
#include <unordered_set>

#include "server/driver_table.hpp"
#include "server/ledger/worker/saturating.hpp"

namespace gpuwire::server {
namespace {

constexpr uint64_t kAllocationUnitBytes = 512;

struct Edges {
  std::vector<CUgraphNode> from, to;
};

// False: the driver does not report the edges.
bool read_edges(const DriverTable& driver, CUgraph graph, Edges& edges) {
  size_t count = 0;
  auto ask = [&](CUgraphNode* from, CUgraphNode* to, std::vector<CUgraphEdgeData>& data) {
    // The older function fails if an edge has data.
    if (driver.cuGraphGetEdges_v2)
      return driver.cuGraphGetEdges_v2(graph, from, to, from ? data.data() : nullptr, &count);
    return driver.cuGraphGetEdges ? driver.cuGraphGetEdges(graph, from, to, &count) : CUDA_ERROR_NOT_SUPPORTED;
  };
  std::vector<CUgraphEdgeData> data;
  if (ask(nullptr, nullptr, data) != CUDA_SUCCESS) return false;
  edges.from.resize(count);
  edges.to.resize(count);
  data.resize(count);
  return count == 0 || ask(edges.from.data(), edges.to.data(), data) == CUDA_SUCCESS;
}

// Returns the nodes that continue the chain of a predecessor; each other node begins a chain.
std::unordered_set<CUgraphNode> continuing(const Edges& edges) {
  std::unordered_set<CUgraphNode> continued, continuing;
  for (size_t i = 0; i < edges.from.size(); ++i) {
    if (!continued.contains(edges.from[i]) && continuing.insert(edges.to[i]).second) continued.insert(edges.from[i]);
  }
  return continuing;
}

size_t count_of(const DriverTable& driver, CUgraphNode node, bool dependent) {
  size_t count = 0;
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  if (dependent) {
    if (driver.cuGraphNodeGetDependentNodes_v2)
      result = driver.cuGraphNodeGetDependentNodes_v2(node, nullptr, nullptr, &count);
    else if (driver.cuGraphNodeGetDependentNodes) result = driver.cuGraphNodeGetDependentNodes(node, nullptr, &count);
  } else if (driver.cuGraphNodeGetDependencies_v2) {
    result = driver.cuGraphNodeGetDependencies_v2(node, nullptr, nullptr, &count);
  } else if (driver.cuGraphNodeGetDependencies) {
    result = driver.cuGraphNodeGetDependencies(node, nullptr, &count);
  }
  return result == CUDA_SUCCESS ? count : 0;
}

}  // namespace

uint64_t GraphReader::parameter_bytes(CUfunction function, CUkernel kernel) const {
  const void* key = function ? static_cast<const void*>(function) : kernel;
  auto [entry, fresh] = parameter_bytes_.try_emplace(key);
  if (fresh) entry->second = ask_parameter_bytes(function, kernel);
  return entry->second;
}

uint64_t GraphReader::ask_parameter_bytes(CUfunction function, CUkernel kernel) const {
  const auto of_function = driver_.cuFuncGetParamInfo;
  const auto of_kernel = driver_.cuKernelGetParamInfo;
  if (function ? !of_function : !of_kernel) return kUnknownParameterBytes;
  uint64_t end = 0;
  for (size_t index = 0;; ++index) {
    size_t offset = 0, bytes = 0;
    CUresult told =
        function ? of_function(function, index, &offset, &bytes) : of_kernel(kernel, index, &offset, &bytes);
    // The function may be a library's CUkernel.
    if (told == CUDA_ERROR_INVALID_HANDLE && function && index == 0 && of_kernel)
      return ask_parameter_bytes(nullptr, reinterpret_cast<CUkernel>(function));
    if (told != CUDA_SUCCESS) return end;
    end = std::max<uint64_t>(end, offset + bytes);
  }
}

uint64_t GraphReader::kernel_host_bytes(CUfunction function, CUkernel kernel) const {
  return kGraphNodeHostBytes + kParameterCopies * parameter_bytes(function, kernel);
}

uint64_t GraphReader::kernel_host_bytes(CUgraphNode node) const {
  return kGraphNodeHostBytes + kParameterCopies * kernel_of(node).parameter_bytes;
}

GraphReader::Kernel GraphReader::kernel_of(CUgraphNode node) const {
  CUDA_KERNEL_NODE_PARAMS_v2 params{};
  if (!driver_.cuGraphKernelNodeGetParams_v2 || driver_.cuGraphKernelNodeGetParams_v2(node, &params) != CUDA_SUCCESS)
    return {nullptr, kUnknownParameterBytes};
  return {params.ctx, parameter_bytes(params.func, params.kern)};
}

void GraphReader::add_inner(CUgraphNode node, CUgraphNodeType type, std::vector<CUgraph>& inner) const {
  CUgraph child = nullptr;
  if (type == CU_GRAPH_NODE_TYPE_GRAPH && driver_.cuGraphChildGraphNodeGetGraph &&
      driver_.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS)
    inner.push_back(child);
  if (type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
    for (CUgraph body : bodies_(node)) inner.push_back(body);
  }
}

void GraphReader::read_one(CUgraph graph, GraphBytes& bytes, std::vector<CUgraph>& inner,
                           const std::function<void(CUgraphNode)>& visit) const {
  size_t count = 0;
  if (driver_.cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS || count == 0) return;
  std::vector<CUgraphNode> nodes(count);
  if (driver_.cuGraphGetNodes(graph, nodes.data(), &count) != CUDA_SUCCESS) return;
  Edges edges;
  std::unordered_set<CUgraphNode> in_chains;
  if (read_edges(driver_, graph, edges)) in_chains = continuing(edges);
  bytes.host += edges.from.size() * kGraphEdgeHostBytes;
  bytes.exec_host += edges.from.size() * kGraphEdgeHostBytes;
  for (CUgraphNode node : nodes) {
    CUgraphNodeType type{};
    if (driver_.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS) continue;
    if (visit) visit(node);
    Kernel kernel;
    if (type == CU_GRAPH_NODE_TYPE_KERNEL) kernel = kernel_of(node);
    const uint64_t parameters = kParameterCopies * kernel.parameter_bytes;
    bytes.host += kGraphNodeHostBytes + parameters;
    bytes.exec_host += kExecNodeHostBytes + parameters;
    CUDA_MEM_ALLOC_NODE_PARAMS allocation{};
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
        driver_.cuGraphMemAllocNodeGetParams(node, &allocation) == CUDA_SUCCESS) {
      uint64_t& here = bytes.allocations[allocation.poolProps.location.id];
      here = sum(here, round_up(allocation.bytesize, kAllocationUnitBytes));
    }
    add_inner(node, type, inner);
    if (type == CU_GRAPH_NODE_TYPE_EMPTY) continue;
    uint64_t& device = bytes.exec_device[kernel.context];
    device += kExecNodeDeviceBytes + parameters;
    if (in_chains.contains(node)) continue;
    device += kExecChainDeviceBytes;
    bytes.exec_host += kExecChainHostBytes;
  }
}

GraphBytes GraphReader::read(CUgraph graph, const std::function<void(CUgraphNode)>& visit) const {
  GraphBytes bytes;
  // An explicit list replaces recursion, because the client decides how deeply graphs are nested.
  std::vector<CUgraph> inner{graph};
  while (!inner.empty()) {
    CUgraph next = inner.back();
    inner.pop_back();
    read_one(next, bytes, inner, visit);
  }
  return bytes;
}

uint64_t GraphReader::node_host_bytes(CUgraphNode node) const {
  CUgraphNodeType type{};
  if (driver_.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS) return 0;
  uint64_t bytes = kGraphNodeHostBytes;
  if (type == CU_GRAPH_NODE_TYPE_KERNEL) bytes += kParameterCopies * kernel_of(node).parameter_bytes;
  bytes += (count_of(driver_, node, false) + count_of(driver_, node, true)) * kGraphEdgeHostBytes;
  std::vector<CUgraph> inner;
  add_inner(node, type, inner);
  for (CUgraph graph : inner) bytes += read(graph).host;
  return bytes;
}

}  // namespace gpuwire::server
