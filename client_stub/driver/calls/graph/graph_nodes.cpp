// Nodes whose parameters are more than plain data: kernels with their arguments, host functions, conditional nodes.
// Also the generic calls, which may be about a node of any kind.
#include <cstring>
#include <span>
#include <vector>

#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client/session_sends.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/graph/graph.hpp"
#include "client_stub/driver/state/graph/graph_copies.hpp"
#include "client_stub/driver/state/launch/launch_shape.hpp"
#include "client_stub/driver/state/module/module_state.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/graph/graph_records.hpp"
#include "client_stub/driver/state/graph/user_objects.hpp"
#include "client_stub/driver/state/stream/host_callbacks.hpp"
#include "client_stub/driver/calls/stream/memory_operations.hpp"
#include "client_stub/driver/state/copy/memory_in_flight.hpp"
#include "protocol/wire/limits.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {
namespace {

enum class Operation : uint8_t { add = 0, set = 1, set_in_exec = 2, query = 3 };

uint64_t word_of(const void* handle) { return reinterpret_cast<uint64_t>(handle); }

// The node that a call is about, or the place of a new node.
struct Target {
  Operation operation = Operation::add;
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUgraphNode node = nullptr;
  std::span<const CUgraphNode> dependencies;
  const CUgraphEdgeData* edges = nullptr;
};

CUresult check(const Target& target) {
  if (target.operation != Operation::add && !known_handle(wire::HandleKind::graph_node, word_of(target.node)))
    return CUDA_ERROR_INVALID_VALUE;
  if (target.operation == Operation::set_in_exec && !known_handle(wire::HandleKind::graph_exec, word_of(target.exec)))
    return CUDA_ERROR_INVALID_VALUE;
  if (target.operation != Operation::add) return CUDA_SUCCESS;
  if (!known_handle(wire::HandleKind::graph, word_of(target.graph)) || target.dependencies.size() > wire::kListItemsMax)
    return CUDA_ERROR_INVALID_VALUE;
  if (!target.dependencies.empty() && !target.dependencies.data()) return CUDA_ERROR_INVALID_VALUE;
  for (CUgraphNode each : target.dependencies) {
    if (!known_handle(wire::HandleKind::graph_node, word_of(each))) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

// Sends a graph_node call; `message` has the fields of the kind. A new node's handle is target.node.
template <class Read>
CUresult ask(const Caller& caller, CUgraphNodeType kind, const Target& target, wire::message::GraphNode message,
             Read&& read) {
  if (!caller.session->facts().knows(uint32_t(wire::SessionOrdinal::graph_node))) return CUDA_ERROR_NOT_SUPPORTED;
  message.operation = uint8_t(target.operation);
  message.kind = kind;
  message.graph = word_of(target.graph);
  message.exec = word_of(target.exec);
  message.node = word_of(target.node);
  message.dependencies = target.dependencies;
  if (target.edges) message.edges = {target.edges, target.dependencies.size() * sizeof(CUgraphEdgeData)};
  return send::call_graph_node(*caller.session, caller.context, message, read);
}

// Sends a call that adds or changes a node. `out` gets the handle of a new node.
CUresult send_change(const Caller& caller, CUgraphNodeType kind, Target target, CUgraphNode* out,
                     const wire::message::GraphNode& message) {
  bool adds = target.operation == Operation::add;
  if (adds && !out) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = check(target)) return error;
  if (adds) {
    target.node = reinterpret_cast<CUgraphNode>(create_handle(caller, wire::HandleKind::graph_node));
    if (!target.node) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  CUresult result = ask(caller, kind, target, message, [](schema::GraphNodeReply::Reader) {});
  if (!adds) return result;
  if (result) {
    forget_handle(wire::HandleKind::graph_node, word_of(target.node));
    return result;
  }
  *out = target.node;
  caller.server->graph_records.note_nodes(word_of(target.graph), {out, 1});
  return CUDA_SUCCESS;
}

// --- kernels -------------------------------------------------------------------------------------------------------

template <class Parameters>
CUDA_KERNEL_NODE_PARAMS as_kernel(const Parameters& p) {
  return {p.func,      p.gridDimX,       p.gridDimY,     p.gridDimZ, p.blockDimX, p.blockDimY,
          p.blockDimZ, p.sharedMemBytes, p.kernelParams, p.extra,    nullptr,     nullptr};
}
CUDA_KERNEL_NODE_PARAMS as_kernel(const CUDA_KERNEL_NODE_PARAMS_v3& p) {
  return {p.func,      p.gridDimX,       p.gridDimY,     p.gridDimZ, p.blockDimX, p.blockDimY,
          p.blockDimZ, p.sharedMemBytes, p.kernelParams, p.extra,    p.kern,      p.ctx};
}

// Returns the size of the packed parameters, or 0 if there are none. A node takes exactly as many bytes as the kernel
// has (as measured on driver 580).
size_t packed_bytes(void** extra) {
  for (void** entry = extra; entry && *entry != CU_LAUNCH_PARAM_END; entry += 2) {
    if (*entry == CU_LAUNCH_PARAM_BUFFER_SIZE) return *static_cast<const size_t*>(entry[1]);
  }
  return 0;
}

CUresult send_kernel(const Caller& caller, const Target& target, CUgraphNode* out,
                     const CUDA_KERNEL_NODE_PARAMS& kernel) {
  FunctionState* function = kernel.func
                                ? handles().find<FunctionState>(wire::HandleKind::function, word_of(kernel.func))
                                : find_kernel(kernel.kern);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  bool by_kernel = !kernel.func;
  if (by_kernel && kernel.ctx && !known_handle(wire::HandleKind::context, word_of(kernel.ctx)))
    return CUDA_ERROR_INVALID_CONTEXT;
  if (CUresult error = know_parameters(caller, *function)) return error;
  LaunchParameters parameters;
  if (CUresult error = find_parameters(kernel.kernelParams, kernel.extra, function->parameters.bytes, parameters))
    return error;
  if (!parameters.each && packed_bytes(kernel.extra) != function->parameters.bytes) return CUDA_ERROR_INVALID_VALUE;
  std::vector<std::byte> packed(function->parameters.bytes);
  if (CUresult error = pack_parameters(parameters, function->parameters, packed, reading_of(caller, *function)))
    return error;
  // The addresses are noted before any launch, so that copies that are added after this node use the same memory at the
  // server.
  note_addresses_in(caller, packed);
  take_profiled_allocations(caller);
  return send_change(caller, CU_GRAPH_NODE_TYPE_KERNEL, target, out,
                     {.function = function->handle,
                      .context = by_kernel ? word_of(kernel.ctx) : 0,
                      .grid_x = kernel.gridDimX,
                      .grid_y = kernel.gridDimY,
                      .grid_z = kernel.gridDimZ,
                      .block_x = kernel.blockDimX,
                      .block_y = kernel.blockDimY,
                      .block_z = kernel.blockDimZ,
                      .shared_bytes = kernel.sharedMemBytes,
                      .parameters = packed});
}

// Stores both the function and the kernel of a node. `state` is null if the handle is unknown.
void name_function(CUDA_KERNEL_NODE_PARAMS& kernel, uint64_t handle, FunctionState*& state) {
  if (wire::handle_kind(handle) == wire::HandleKind::kernel) {
    kernel.kern = reinterpret_cast<CUkernel>(handle);
    state = find_kernel(kernel.kern);
    if (custom::cuKernelGetFunction(&kernel.func, kernel.kern) != CUDA_SUCCESS) kernel.func = nullptr;
    return;
  }
  kernel.func = reinterpret_cast<CUfunction>(handle);
  state = find_launchable(kernel.func);
  if (state && state->kernel) kernel.kern = reinterpret_cast<CUkernel>(state->kernel->handle);
}

CUresult query_kernel(const Caller& caller, CUgraphNode node, CUDA_KERNEL_NODE_PARAMS& kernel) {
  Target target{.operation = Operation::query, .node = node};
  if (CUresult error = check(target)) return error;
  uint64_t function = 0;
  std::vector<std::byte> packed;
  CUresult result = ask(caller, CU_GRAPH_NODE_TYPE_KERNEL, target, {}, [&](schema::GraphNodeReply::Reader reply) {
    function = reply.getFunction();
    kernel.gridDimX = reply.getGridX();
    kernel.gridDimY = reply.getGridY();
    kernel.gridDimZ = reply.getGridZ();
    kernel.blockDimX = reply.getBlockX();
    kernel.blockDimY = reply.getBlockY();
    kernel.blockDimZ = reply.getBlockZ();
    kernel.sharedMemBytes = reply.getSharedBytes();
    auto data = reply.getParameters();
    packed.resize(data.size());
    if (data.size()) std::memcpy(packed.data(), data.begin(), data.size());
  });
  if (result) return result;
  FunctionState* state = nullptr;
  name_function(kernel, function, state);
  kernel.ctx = state && state->context ? as_cuda(state->context) : as_cuda(caller.state);
  if (CUresult error = state ? know_parameters(caller, *state) : CUDA_SUCCESS) return error;
  if (!state || packed.size() < state->parameters.bytes) return state ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
  NodeStorage& storage = caller.server->node_storages.of(word_of(node));
  storage.packed.resize((packed.size() + 7) / 8);
  if (!packed.empty()) std::memcpy(storage.packed.data(), packed.data(), packed.size());
  storage.pointers.clear();
  for (uint32_t offset : state->parameters.offsets)
    storage.pointers.push_back(reinterpret_cast<char*>(storage.packed.data()) + offset);
  kernel.kernelParams = storage.pointers.empty() ? nullptr : storage.pointers.data();
  return CUDA_SUCCESS;
}

// --- functions of the program --------------------------------------------------------------------------------------

CUresult send_host(const Caller& caller, const Target& target, CUgraphNode* out, CUhostFn function, void* user) {
  if (!function) return CUDA_ERROR_INVALID_VALUE;
  HostCallback callback;
  callback.host_function = function;
  callback.user_data = user;
  callback.repeats = true;
  uint64_t number = caller.server->host_callbacks.add(callback);
  if (number == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = send_change(caller, CU_GRAPH_NODE_TYPE_HOST, target, out, {.callback = number});
  if (result) {
    caller.server->host_callbacks.remove(number);
    return result;
  }
  GraphRecords& records = caller.server->graph_records;
  const uint64_t owner = target.exec ? word_of(target.exec) : records.graph_of(word_of(out ? *out : target.node));
  if (owner) records.note_awaits(owner, Awaits::functions);
  return result;
}

CUresult query_host(const Caller& caller, CUgraphNode node, CUDA_HOST_NODE_PARAMS& out) {
  Target target{.operation = Operation::query, .node = node};
  if (CUresult error = check(target)) return error;
  uint64_t number = 0;
  CUresult result = ask(caller, CU_GRAPH_NODE_TYPE_HOST, target, {},
                        [&](schema::GraphNodeReply::Reader reply) { number = reply.getCallback(); });
  HostCallback callback;
  if (!result && !caller.server->host_callbacks.find(number, callback)) result = CUDA_ERROR_INVALID_VALUE;
  if (!result) out = {callback.host_function, callback.user_data};
  return result;
}

// --- conditional nodes ---------------------------------------------------------------------------------------------

constexpr unsigned kBodiesMax = 4096;

CUresult add_conditional(const Caller& caller, const Target& target, CUgraphNode* out,
                         CUDA_CONDITIONAL_NODE_PARAMS& conditional) {
  if (conditional.size == 0 || conditional.size > kBodiesMax) return CUDA_ERROR_INVALID_VALUE;
  if (conditional.ctx && !known_handle(wire::HandleKind::context, word_of(conditional.ctx)))
    return CUDA_ERROR_INVALID_CONTEXT;
  std::vector<CUgraph> bodies;
  CUresult result = CUDA_SUCCESS;
  while (bodies.size() < conditional.size && !result) {
    uint64_t handle = create_handle(caller, wire::HandleKind::graph);
    if (handle) bodies.push_back(reinterpret_cast<CUgraph>(handle));
    if (!handle) result = CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (!result) {
    result = send_change(caller, CU_GRAPH_NODE_TYPE_CONDITIONAL, target, out,
                         {.context = word_of(conditional.ctx),
                          .condition = conditional.handle,
                          .condition_type = conditional.type,
                          .bodies = bodies});
  }
  if (result) {
    for (CUgraph body : bodies) forget_handle(wire::HandleKind::graph, word_of(body));
    return result;
  }
  for (CUgraph body : bodies) caller.server->graph_records.note_inner(word_of(target.graph), word_of(body));
  NodeStorage& storage = caller.server->node_storages.of(word_of(*out));
  storage.bodies = std::move(bodies);
  conditional.phGraph_out = storage.bodies.data();
  return CUDA_SUCCESS;
}

// --- words that are written and waited for --------------------------------------------------------------------------

// Sends a node of memory operations by `send`, and notes the operations in its graph. `owner` returns the node's graph
// or executable graph, or 0 if it is unknown. It is called when the node exists.
template <class Parameters, class Send, class Owner>
CUresult send_operations(const Caller& caller, const Parameters& p, Send&& send, Owner&& owner) {
  const bool readable = p.paramArray && p.count <= wire::kListItemsMax;
  const MemoryOperations operations = look_at(caller, {p.paramArray, readable ? p.count : 0});
  const CUresult result = send();
  const uint64_t has = result ? 0 : owner();
  if (has) note_in_graph(caller, has, operations);
  return result;
}

// --- any kind ------------------------------------------------------------------------------------------------------

CUresult add_plain(const Caller& caller, const Target& target, CUgraphNode* out, CUgraphNodeParams* parameters) {
  size_t count = target.dependencies.size();
  return target.edges
             ? forward::cuGraphAddNode_v2(caller, out, target.graph, target.dependencies.data(), target.edges, count,
                                          parameters)
             : forward::cuGraphAddNode(caller, out, target.graph, target.dependencies.data(), count, parameters);
}

CUresult add_node(const Caller& caller, const Target& target, CUgraphNode* out, CUgraphNodeParams& parameters) {
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  switch (parameters.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return send_kernel(caller, target, out, as_kernel(parameters.kernel));
    case CU_GRAPH_NODE_TYPE_HOST: return send_host(caller, target, out, parameters.host.fn, parameters.host.userData);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: return add_conditional(caller, target, out, parameters.conditional);
    case CU_GRAPH_NODE_TYPE_MEMCPY: {
      CUgraphNodeParams with_places = parameters;
      std::vector<GraphUse> uses;
      if (CUresult error = to_places(caller, with_places.memcpy.copyParams, uses)) return error;
      CUresult result = add_plain(for_graph_copies(caller), target, out, &with_places);
      if (!result) caller.server->graph_records.add(word_of(target.graph), word_of(*out), uses);
      return result;
    }
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return send_operations(
          caller, parameters.memOp,
          [&] {
            CUresult result = add_plain(caller, target, out, &parameters);
            if (!result) caller.server->graph_records.note_nodes(word_of(target.graph), {out, 1});
            return result;
          },
          [&] { return word_of(target.graph); });
    default: break;
  }
  CUresult result = add_plain(caller, target, out, &parameters);
  if (result) return result;
  caller.server->graph_records.note_nodes(word_of(target.graph), {out, 1});
  if (parameters.type == CU_GRAPH_NODE_TYPE_GRAPH) {
    caller.server->graph_records.copy(word_of(parameters.graph.graph), word_of(target.graph), word_of(*out));
    caller.server->user_objects.copy(word_of(parameters.graph.graph), word_of(target.graph));
  }
  if (parameters.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
    note_graph_memory(caller, parameters.alloc.dptr, parameters.alloc.bytesize);
    caller.server->graph_records.note_allocation(word_of(target.graph), parameters.alloc.dptr);
  }
  if (parameters.type == CU_GRAPH_NODE_TYPE_MEM_FREE)
    caller.server->graph_records.note_free(word_of(target.graph), parameters.free.dptr);
  return CUDA_SUCCESS;
}

CUresult set_node(const Caller& caller, const Target& target, CUgraphNodeParams& parameters) {
  bool in_exec = target.operation == Operation::set_in_exec;
  auto forward_it = [&](CUgraphNodeParams* what) {
    return in_exec ? forward::cuGraphExecNodeSetParams(caller, target.exec, target.node, what)
                   : forward::cuGraphNodeSetParams(caller, target.node, what);
  };
  switch (parameters.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return send_kernel(caller, target, nullptr, as_kernel(parameters.kernel));
    case CU_GRAPH_NODE_TYPE_HOST:
      return send_host(caller, target, nullptr, parameters.host.fn, parameters.host.userData);
    case CU_GRAPH_NODE_TYPE_MEMCPY: {
      const CUDA_MEMCPY_NODE_PARAMS& copy = parameters.memcpy;
      return in_exec ? custom::cuGraphExecMemcpyNodeSetParams(target.exec, target.node, &copy.copyParams, copy.copyCtx)
                     : custom::cuGraphMemcpyNodeSetParams(target.node, &copy.copyParams);
    }
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return send_operations(
          caller, parameters.memOp, [&] { return forward_it(&parameters); },
          [&] { return in_exec ? word_of(target.exec) : caller.server->graph_records.graph_of(word_of(target.node)); });
    default: return forward_it(&parameters);
  }
}

Target adding(CUgraph graph, const CUgraphNode* dependencies, size_t count, const CUgraphEdgeData* edges = nullptr) {
  return {.graph = graph, .dependencies = {dependencies, count}, .edges = edges};
}
Target changing(CUgraphNode node) { return {.operation = Operation::set, .node = node}; }
Target changing(CUgraphExec exec, CUgraphNode node) {
  return {.operation = Operation::set_in_exec, .exec = exec, .node = node};
}

}  // namespace

namespace hand {

CUresult cuGraphAddKernelNode(const Caller& caller, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                              size_t count, const CUDA_KERNEL_NODE_PARAMS_v1* p) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  return send_kernel(caller, adding(graph, dependencies, count), out, as_kernel(*p));
}
CUresult cuGraphAddKernelNode_v2(const Caller& caller, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                                 size_t count, const CUDA_KERNEL_NODE_PARAMS* p) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  return send_kernel(caller, adding(graph, dependencies, count), out, *p);
}
CUresult cuGraphKernelNodeSetParams(const Caller& caller, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* p) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  return send_kernel(caller, changing(node), nullptr, as_kernel(*p));
}
CUresult cuGraphKernelNodeSetParams_v2(const Caller& caller, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* p) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  return send_kernel(caller, changing(node), nullptr, *p);
}
CUresult cuGraphExecKernelNodeSetParams(const Caller& caller, CUgraphExec exec, CUgraphNode node,
                                        const CUDA_KERNEL_NODE_PARAMS_v1* p) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  return send_kernel(caller, changing(exec, node), nullptr, as_kernel(*p));
}
CUresult cuGraphExecKernelNodeSetParams_v2(const Caller& caller, CUgraphExec exec, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS* p) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  return send_kernel(caller, changing(exec, node), nullptr, *p);
}

CUresult cuGraphKernelNodeGetParams_v2(const Caller& caller, CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* p) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  *p = {};
  return query_kernel(caller, node, *p);
}
CUresult cuGraphKernelNodeGetParams(const Caller& caller, CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1* p) {
  CUDA_KERNEL_NODE_PARAMS all{};
  CUresult result = p ? hand::cuGraphKernelNodeGetParams_v2(caller, node, &all) : CUDA_ERROR_INVALID_VALUE;
  if (result == CUDA_SUCCESS) {
    *p = {all.func,      all.gridDimX,  all.gridDimY,       all.gridDimZ,     all.blockDimX,
          all.blockDimY, all.blockDimZ, all.sharedMemBytes, all.kernelParams, all.extra};
  }
  return result;
}

CUresult cuGraphAddHostNode(const Caller& caller, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                            size_t count, const CUDA_HOST_NODE_PARAMS* p) {
  // A host node does not use the device, so it may be added in a context with a fault, too (as measured on driver 580).
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  return send_host(caller, adding(graph, dependencies, count), out, p->fn, p->userData);
}
CUresult cuGraphHostNodeGetParams(const Caller& caller, CUgraphNode node, CUDA_HOST_NODE_PARAMS* p) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  return query_host(caller, node, *p);
}
CUresult cuGraphHostNodeSetParams(const Caller& caller, CUgraphNode node, const CUDA_HOST_NODE_PARAMS* p) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  return send_host(caller, changing(node), nullptr, p->fn, p->userData);
}
CUresult cuGraphExecHostNodeSetParams(const Caller& caller, CUgraphExec exec, CUgraphNode node,
                                      const CUDA_HOST_NODE_PARAMS* p) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  return send_host(caller, changing(exec, node), nullptr, p->fn, p->userData);
}

CUresult cuGraphAddBatchMemOpNode(const Caller& caller, CUgraphNode* out, CUgraph graph,
                                  const CUgraphNode* dependencies, size_t count,
                                  const CUDA_BATCH_MEM_OP_NODE_PARAMS* p) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  return send_operations(
      caller, *p,
      [&] {
        CUresult result = forward::cuGraphAddBatchMemOpNode(caller, out, graph, dependencies, count, p);
        if (!result) caller.server->graph_records.note_nodes(word_of(graph), {out, 1});
        return result;
      },
      [&] { return word_of(graph); });
}
CUresult cuGraphBatchMemOpNodeSetParams(const Caller& caller, CUgraphNode node,
                                        const CUDA_BATCH_MEM_OP_NODE_PARAMS* p) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  return send_operations(
      caller, *p, [&] { return forward::cuGraphBatchMemOpNodeSetParams(caller, node, p); },
      [&] { return caller.server->graph_records.graph_of(word_of(node)); });
}
CUresult cuGraphExecBatchMemOpNodeSetParams(const Caller& caller, CUgraphExec exec, CUgraphNode node,
                                            const CUDA_BATCH_MEM_OP_NODE_PARAMS* p) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  return send_operations(
      caller, *p, [&] { return forward::cuGraphExecBatchMemOpNodeSetParams(caller, exec, node, p); },
      [&] { return word_of(exec); });
}

// The driver decides which nodes may be added in a context with a fault.
CUresult cuGraphAddNode(const Caller& caller, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                        size_t count, CUgraphNodeParams* p) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  return add_node(caller, adding(graph, dependencies, count), out, *p);
}
CUresult cuGraphAddNode_v2(const Caller& caller, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                           const CUgraphEdgeData* edges, size_t count, CUgraphNodeParams* p) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  return add_node(caller, adding(graph, dependencies, count, edges), out, *p);
}
CUresult cuGraphNodeSetParams(const Caller& caller, CUgraphNode node, CUgraphNodeParams* p) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  return set_node(caller, changing(node), *p);
}
CUresult cuGraphExecNodeSetParams(const Caller& caller, CUgraphExec exec, CUgraphNode node, CUgraphNodeParams* p) {
  if (!p) return CUDA_ERROR_INVALID_VALUE;
  return set_node(caller, changing(exec, node), *p);
}

}  // namespace hand
}  // namespace gpuwire::client
