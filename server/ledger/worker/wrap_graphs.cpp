// Graphs and their instances.
#include <algorithm>

#include "server/ledger/worker/charges.hpp"
#include "server/ledger/worker/context_charges.hpp"
#include "server/ledger/worker/graph_charges.hpp"

namespace gpuwire::server {
namespace {

constexpr uint64_t kGraphUnitBytes = 32u << 20;  // graph memory grows by multiples of this

}  // namespace

GraphCharges::GraphCharges(LedgerParts& parts) : parts_(parts), charged_(parts.columns.size()) {}

uint64_t GraphCharges::attribute(CUdevice device, CUgraphMem_attribute attribute) const {
  cuuint64_t bytes = 0;
  auto get = parts_.driver.cuDeviceGetGraphMemAttribute;
  return get && get(device, attribute, &bytes) == CUDA_SUCCESS ? bytes : 0;
}

GraphCharges::Needs GraphCharges::needs(CUgraphExec exec) {
  MutexLock lock(execs_mutex_);
  auto found = execs_.find(exec);
  return found == execs_.end() ? Needs{} : found->second.allocations;
}

uint64_t GraphCharges::grown(CUdevice device) const {
  return growth(attribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), charged_[size_t(device)]);
}

uint64_t GraphCharges::missing(CUdevice device, uint64_t bytes) const {
  if (parts_.software) return bytes;
  const uint64_t idle = growth(charged_[size_t(device)], attribute(device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT));
  return round_up(growth(bytes, idle), kGraphUnitBytes);
}

void GraphCharges::settle(CUdevice device) {
  auto column = parts_.column(device);
  if (!column) return;
  uint64_t& charged = charged_[size_t(device)];
  const uint64_t shrunk = growth(charged, attribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT));
  parts_.ledger.give_back(*column, shrunk);
  charged -= shrunk;
  // Charges memory beyond the reservation. take() calls these with the lock held.
  take(
      parts_.ledger, *column, 0, [] { return CUDA_SUCCESS; }, [&]() WITHOUT_LOCK_CHECK { return grown(device); },
      [&](uint64_t bytes) { charged += bytes; }, [] {});
}

void GraphCharges::settle() {
  if (!any()) return;
  MutexLock lock(mutex_);
  for (size_t device = 0; device < charged_.size(); ++device) settle(CUdevice(device));
}

// --- graphs ----------------------------------------------------------------------------------------------------------

// The sum saturates at 0, because nodes may be larger than their charge after unnoticed changes or failed calls.
void GraphCharges::unmade(uint64_t bytes) {
  uint64_t had = made_.load();
  while (!made_.compare_exchange_weak(had, had - std::min(had, bytes))) {}
  parts_.ledger.give_back(kHostColumn, std::min(had, bytes));
}

CUresult GraphCharges::destroy(CUgraph graph) {
  std::vector<CUgraphNode> nodes;
  const uint64_t bytes = reader().read(graph, [&](CUgraphNode node) { nodes.push_back(node); }).host;
  CUresult result = unmake(bytes, [&] { return parts_.driver.cuGraphDestroy(graph); });
  settle();
  if (result != CUDA_SUCCESS) return result;
  MutexLock lock(graphs_mutex_);
  if (bodies_.empty()) return result;
  for (CUgraphNode node : nodes) bodies_.erase(node);
  return result;
}

void GraphCharges::capturing(CUstream stream, CUgraph into) {
  const uint64_t bytes = graph_bytes(into);
  MutexLock lock(graphs_mutex_);
  captures_into_[stream] = bytes;
}

std::pair<bool, uint64_t> GraphCharges::taken_from_capture(CUstream stream) {
  MutexLock lock(graphs_mutex_);
  auto entry = captures_into_.extract(stream);
  return entry ? std::pair(true, entry.mapped()) : std::pair(false, uint64_t{0});
}

void GraphCharges::has_bodies(CUgraphNode node, std::vector<CUgraph> bodies) {
  MutexLock lock(graphs_mutex_);
  bodies_[node] = std::move(bodies);
}

std::vector<CUgraph> GraphCharges::bodies(CUgraphNode node) const {
  MutexLock lock(graphs_mutex_);
  auto found = bodies_.find(node);
  return found == bodies_.end() ? std::vector<CUgraph>{} : found->second;
}

// --- instances -------------------------------------------------------------------------------------------------------

CUresult GraphCharges::place(const GraphBytes& bytes, Devices& device) {
  if (bytes.exec_device.empty()) return CUDA_SUCCESS;
  Place here;
  const CUresult current = parts_.here(here);
  for (const auto& [context, taken] : bytes.exec_device) {
    std::optional<Place> place = context ? parts_.contexts->place_of(context) : std::nullopt;
    // A node without a known context runs in the current one.
    if (!place && current != CUDA_SUCCESS) return current;
    if (!place) place = here;
    shares_[place->context].column = place->column;
    device[place->context] += taken;
  }
  return CUDA_SUCCESS;
}

CUresult GraphCharges::destroy(CUgraphExec exec) {
  MutexLock lock(execs_mutex_);
  auto entry = execs_.extract(exec);  // the driver may give the same number to another thread at once
  CUresult result = parts_.driver.cuGraphExecDestroy(exec);
  if (entry && result != CUDA_SUCCESS) execs_.insert(std::move(entry));
  if (entry && result == CUDA_SUCCESS) {
    parts_.ledger.give_back(kHostColumn, entry.mapped().host);
    for (const auto& [context, bytes] : entry.mapped().device) shares_.at(context).needed -= bytes;
  }
  lock.unlock();
  settle();
  return result;
}

void GraphCharges::drop(CUcontext context) {
  MutexLock lock(execs_mutex_);
  auto share = shares_.extract(context);
  if (!share) return;
  parts_.ledger.give_back(share.mapped().column, share.mapped().charged);
  for (auto& [exec, of] : execs_) of.device.erase(context);
}

namespace {

GraphCharges& graphs() { return *ledger_parts().graphs; }

// Returns the device memory that a new node takes at once.
uint64_t at_once(uint64_t bytes) { return ledger_parts().software ? bytes : 0; }

uint64_t plain_node(size_t edges) { return kGraphNodeHostBytes + GraphCharges::edges_bytes(edges); }

CUresult graph_add_mem_alloc_node(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                  CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  return graphs().make(plain_node(count), [&] {
    return graphs().within({{params->poolProps.location.id, at_once(params->bytesize)}}, [&] {
      return ledger_parts().driver.cuGraphAddMemAllocNode(node, graph, dependencies, count, params);
    });
  });
}

CUresult graph_add_child_graph_node(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                    CUgraph child) {
  return graphs().make(plain_node(count) + graphs().graph_bytes(child), [&] {
    return ledger_parts().driver.cuGraphAddChildGraphNode(node, graph, dependencies, count, child);
  });
}

CUresult graph_clone(CUgraph* clone, CUgraph graph) {
  return graphs().make(graphs().graph_bytes(graph), [&] { return ledger_parts().driver.cuGraphClone(clone, graph); });
}

// Wrappers of the functions that add other nodes.
template <auto kMember, class Function>
struct Adding;
template <auto kMember, class... Arguments>
struct Adding<kMember, CUresult (*)(CUgraphNode*, CUgraph, const CUgraphNode*, size_t, Arguments...)> {
  static CUresult call(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                       Arguments... arguments) {
    return graphs().make(plain_node(count), [&] {
      return (ledger_parts().driver.*kMember)(node, graph, dependencies, count, arguments...);
    });
  }
};
template <auto kMember>
constexpr auto adding = &Adding<kMember, decltype(function_of(kMember))>::call;

CUresult graph_add_dependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  return graphs().make(GraphCharges::edges_bytes(count),
                       [&] { return ledger_parts().driver.cuGraphAddDependencies(graph, from, to, count); });
}
CUresult graph_add_dependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData* data, size_t count) {
  return graphs().make(GraphCharges::edges_bytes(count),
                       [&] { return ledger_parts().driver.cuGraphAddDependencies_v2(graph, from, to, data, count); });
}
CUresult graph_remove_dependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  return graphs().unmake(GraphCharges::edges_bytes(count),
                         [&] { return ledger_parts().driver.cuGraphRemoveDependencies(graph, from, to, count); });
}
CUresult graph_remove_dependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                      const CUgraphEdgeData* data, size_t count) {
  return graphs().unmake(GraphCharges::edges_bytes(count), [&] {
    return ledger_parts().driver.cuGraphRemoveDependencies_v2(graph, from, to, data, count);
  });
}

CUresult stream_begin_capture_to_graph(CUstream stream, CUgraph graph, const CUgraphNode* dependencies,
                                       const CUgraphEdgeData* data, size_t count, CUstreamCaptureMode mode) {
  CUresult result = ledger_parts().driver.cuStreamBeginCaptureToGraph(stream, graph, dependencies, data, count, mode);
  if (result == CUDA_SUCCESS) graphs().capturing(stream, graph);
  return result;
}
CUresult stream_end_capture(CUstream stream, CUgraph* graph) {
  return graphs().captured(stream, graph, [&] { return ledger_parts().driver.cuStreamEndCapture(stream, graph); });
}

CUresult graph_instantiate_with_flags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  return graphs().instantiate(exec, graph,
                              [&] { return ledger_parts().driver.cuGraphInstantiateWithFlags(exec, graph, flags); });
}
CUresult graph_instantiate_with_params(CUgraphExec* exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return graphs().instantiate(exec, graph,
                              [&] { return ledger_parts().driver.cuGraphInstantiateWithParams(exec, graph, params); });
}
CUresult graph_instantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode* error, char* log, size_t log_bytes) {
  return graphs().instantiate(
      exec, graph, [&] { return ledger_parts().driver.cuGraphInstantiate_v2(exec, graph, error, log, log_bytes); });
}

CUresult graph_launch(CUgraphExec exec, CUstream stream) {
  LedgerParts& parts = ledger_parts();
  return parts.graphs->run(exec, [&] { return parts.driver.cuGraphLaunch(exec, stream); });
}
CUresult graph_upload(CUgraphExec exec, CUstream stream) {
  LedgerParts& parts = ledger_parts();
  return parts.graphs->run(exec, [&] { return parts.driver.cuGraphUpload(exec, stream); });
}

CUresult graph_exec_destroy(CUgraphExec exec) { return graphs().destroy(exec); }
CUresult graph_destroy(CUgraph graph) { return graphs().destroy(graph); }

CUresult graph_destroy_node(CUgraphNode node) {
  CUresult result =
      graphs().unmake(graphs().node_bytes(node), [&] { return ledger_parts().driver.cuGraphDestroyNode(node); });
  graphs().settle();
  return result;
}

CUresult device_graph_mem_trim(CUdevice device) {
  CUresult result = ledger_parts().driver.cuDeviceGraphMemTrim(device);
  graphs().settle();
  return result;
}

}  // namespace

void wrap_graphs(DriverTable& table) {
  wrap(table.cuGraphAddMemAllocNode, &graph_add_mem_alloc_node);
  wrap(table.cuGraphAddChildGraphNode, &graph_add_child_graph_node);
  wrap(table.cuGraphAddBatchMemOpNode, adding<&DriverTable::cuGraphAddBatchMemOpNode>);
  wrap(table.cuGraphAddEmptyNode, adding<&DriverTable::cuGraphAddEmptyNode>);
  wrap(table.cuGraphAddEventRecordNode, adding<&DriverTable::cuGraphAddEventRecordNode>);
  wrap(table.cuGraphAddEventWaitNode, adding<&DriverTable::cuGraphAddEventWaitNode>);
  wrap(table.cuGraphAddHostNode, adding<&DriverTable::cuGraphAddHostNode>);
  wrap(table.cuGraphAddMemFreeNode, adding<&DriverTable::cuGraphAddMemFreeNode>);
  wrap(table.cuGraphAddMemcpyNode, adding<&DriverTable::cuGraphAddMemcpyNode>);
  wrap(table.cuGraphAddMemsetNode, adding<&DriverTable::cuGraphAddMemsetNode>);
  wrap(table.cuGraphAddDependencies, &graph_add_dependencies);
  wrap(table.cuGraphAddDependencies_v2, &graph_add_dependencies_v2);
  wrap(table.cuGraphRemoveDependencies, &graph_remove_dependencies);
  wrap(table.cuGraphRemoveDependencies_v2, &graph_remove_dependencies_v2);
  wrap(table.cuGraphClone, &graph_clone);
  wrap(table.cuStreamBeginCaptureToGraph, &stream_begin_capture_to_graph);
  wrap(table.cuStreamEndCapture, &stream_end_capture);
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
