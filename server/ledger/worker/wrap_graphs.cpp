// Graphs with allocation nodes.
#include <algorithm>

#include "server/ledger/worker/charges.hpp"
#include "server/ledger/worker/graph_charges.hpp"

namespace gpuwire::server {
namespace {

constexpr uint64_t kGraphUnitBytes = 32u << 20;  // graph memory grows by multiples of this
constexpr unsigned kChildDepthMax = 16;

}  // namespace

GraphCharges::GraphCharges(LedgerParts& parts) : parts_(parts), charged_(parts.columns.size()) {}

uint64_t GraphCharges::attribute(CUdevice device, CUgraphMem_attribute attribute) const {
  cuuint64_t bytes = 0;
  auto get = parts_.driver.cuDeviceGetGraphMemAttribute;
  return get && get(device, attribute, &bytes) == CUDA_SUCCESS ? bytes : 0;
}

void GraphCharges::add_needs(CUgraph graph, unsigned depth, Needs& needs) const {
  const DriverTable& driver = parts_.driver;
  size_t count = 0;
  if (depth > kChildDepthMax || driver.cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS || count == 0) return;
  std::vector<CUgraphNode> nodes(count);
  if (driver.cuGraphGetNodes(graph, nodes.data(), &count) != CUDA_SUCCESS) return;
  for (CUgraphNode node : nodes) {
    CUgraphNodeType type{};
    CUDA_MEM_ALLOC_NODE_PARAMS allocation{};
    CUgraph child = nullptr;
    if (driver.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS) continue;
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && driver.cuGraphMemAllocNodeGetParams(node, &allocation) == CUDA_SUCCESS)
      needs[allocation.poolProps.location.id] += round_up(allocation.bytesize, 512);
    if (type == CU_GRAPH_NODE_TYPE_GRAPH && driver.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS)
      add_needs(child, depth + 1, needs);
  }
}

void GraphCharges::instantiated(CUgraphExec exec, CUgraph graph) {
  if (!any()) return;
  Needs needs;
  // The software device takes a node's memory when the node is made.
  if (!parts_.software) add_needs(graph, 0, needs);
  std::lock_guard lock(needs_mutex_);
  if (needs.empty()) needs_.erase(exec);
  else needs_[exec] = std::move(needs);
}

void GraphCharges::destroyed(CUgraphExec exec) {
  if (!any()) return;
  {
    std::lock_guard lock(needs_mutex_);
    needs_.erase(exec);
  }
  settle();
}

GraphCharges::Needs GraphCharges::needs(CUgraphExec exec) {
  std::lock_guard lock(needs_mutex_);
  auto found = needs_.find(exec);
  return found == needs_.end() ? Needs{} : found->second;
}

bool GraphCharges::reserve(CUdevice device, uint64_t bytes, uint64_t& reserved) {
  auto column = parts_.column(device);
  if (!column) return false;
  settle(device, 0);
  auto missing = [&] {
    uint64_t charged = charged_[size_t(device)];
    uint64_t idle = charged - std::min(charged, attribute(device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT));
    uint64_t more = bytes - std::min(bytes, idle);
    return parts_.software ? bytes : round_up(more, kGraphUnitBytes);
  };
  reserved = missing();
  if (parts_.ledger.reserve(*column, reserved)) return true;
  if (parts_.driver.cuDeviceGraphMemTrim) parts_.driver.cuDeviceGraphMemTrim(device);
  settle(device, 0);
  reserved = missing();
  return parts_.ledger.reserve(*column, reserved);
}

void GraphCharges::settle(CUdevice device, uint64_t reserved) {
  auto column = parts_.column(device);
  if (!column) return;
  uint64_t& charged = charged_[size_t(device)];
  uint64_t has = attribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
  uint64_t grown = has - std::min(has, charged), shrunk = charged - std::min(has, charged);
  // More than was reserved is booked when there is room; what runs cannot be taken back.
  uint64_t covered = std::min(grown, reserved);
  if (grown > reserved && parts_.ledger.reserve(*column, grown - reserved)) covered = grown;
  parts_.ledger.give_back(*column, reserved - std::min(reserved, covered) + shrunk);
  charged = charged - shrunk + covered;
}

void GraphCharges::settle(const Needs& reserved) {
  for (const auto& [device, bytes] : reserved) settle(device, bytes);
}

void GraphCharges::settle() {
  if (!any()) return;
  std::lock_guard lock(mutex_);
  for (size_t device = 0; device < charged_.size(); ++device) settle(CUdevice(device), 0);
}

namespace {

// What a node that is made now takes at once.
uint64_t at_once(uint64_t bytes) { return ledger_parts().software ? bytes : 0; }

CUresult graph_add_mem_alloc_node(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                  CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  LedgerParts& parts = ledger_parts();
  return parts.graphs->within({{params->poolProps.location.id, at_once(params->bytesize)}}, [&] {
    return parts.driver.cuGraphAddMemAllocNode(node, graph, dependencies, count, params);
  });
}

CUresult note(CUresult result, CUgraphExec* exec, CUgraph graph) {
  if (result == CUDA_SUCCESS) ledger_parts().graphs->instantiated(*exec, graph);
  return result;
}

CUresult graph_instantiate_with_flags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  return note(ledger_parts().driver.cuGraphInstantiateWithFlags(exec, graph, flags), exec, graph);
}
CUresult graph_instantiate_with_params(CUgraphExec* exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return note(ledger_parts().driver.cuGraphInstantiateWithParams(exec, graph, params), exec, graph);
}
CUresult graph_instantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode* error, char* log, size_t log_bytes) {
  return note(ledger_parts().driver.cuGraphInstantiate_v2(exec, graph, error, log, log_bytes), exec, graph);
}

CUresult graph_launch(CUgraphExec exec, CUstream stream) {
  LedgerParts& parts = ledger_parts();
  return parts.graphs->run(exec, [&] { return parts.driver.cuGraphLaunch(exec, stream); });
}
CUresult graph_upload(CUgraphExec exec, CUstream stream) {
  LedgerParts& parts = ledger_parts();
  return parts.graphs->run(exec, [&] { return parts.driver.cuGraphUpload(exec, stream); });
}

CUresult graph_exec_destroy(CUgraphExec exec) {
  LedgerParts& parts = ledger_parts();
  CUresult result = parts.driver.cuGraphExecDestroy(exec);
  parts.graphs->destroyed(exec);
  return result;
}

CUresult graph_destroy(CUgraph graph) {
  CUresult result = ledger_parts().driver.cuGraphDestroy(graph);
  ledger_parts().graphs->settle();
  return result;
}

CUresult graph_destroy_node(CUgraphNode node) {
  CUresult result = ledger_parts().driver.cuGraphDestroyNode(node);
  ledger_parts().graphs->settle();
  return result;
}

CUresult device_graph_mem_trim(CUdevice device) {
  CUresult result = ledger_parts().driver.cuDeviceGraphMemTrim(device);
  ledger_parts().graphs->settle();
  return result;
}

}  // namespace

void wrap_graphs(DriverTable& table) {
  wrap(table.cuGraphAddMemAllocNode, &graph_add_mem_alloc_node);
  wrap(table.cuGraphInstantiateWithFlags, &graph_instantiate_with_flags);
  wrap(table.cuGraphInstantiateWithParams, &graph_instantiate_with_params);
  wrap(table.cuGraphInstantiate_v2, &graph_instantiate_v2);
  wrap(table.cuGraphLaunch, &graph_launch);
  wrap(table.cuGraphUpload, &graph_upload);
  wrap(table.cuGraphExecDestroy, &graph_exec_destroy);
  wrap(table.cuGraphDestroy, &graph_destroy);
  wrap(table.cuGraphDestroyNode, &graph_destroy_node);
  wrap(table.cuDeviceGraphMemTrim, &device_graph_mem_trim);
}

}  // namespace gpuwire::server
