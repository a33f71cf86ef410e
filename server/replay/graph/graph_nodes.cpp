// Graph nodes whose parameters are more than plain data: kernels with their arguments, host functions of the client,
// conditional nodes.
#include <cstring>
#include <vector>

#include "protocol/cuda_abi/sticky.hpp"
#include "protocol/wire/limits.hpp"
#include "server/driver_table.hpp"
#include "server/replay/call/generated_support.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/context/context.hpp"
#include "server/replay/module/module_store.hpp"
#include "server/replay/session/replay_state.hpp"
#include "server/replay/stream/host_callbacks.hpp"
#include "server/session_handlers.hpp"

namespace gpuwire::server {

namespace {

enum class Operation : uint8_t { add = 0, set = 1, set_in_exec = 2, query = 3 };

// The memory that stays in place while the driver reads a node's parameters.
struct NodeParameters {
  CUgraphNodeParams all{};
  void* extra[5] = {};
  size_t packed_bytes = 0;
};

CUresult kernel_parameters(Replay& replay, Incoming& incoming, schema::GraphNode::Reader node, NodeParameters& out) {
  auto packed = node.getParameters();
  if (packed.size() > wire::kLaunchParameterBytesMax) throw ProtocolFault{"graph_node: parameters too large"};
  CUDA_KERNEL_NODE_PARAMS_v3& kernel = out.all.kernel;
  bool is_kernel = wire::handle_kind(node.getFunction()) == wire::HandleKind::kernel;
  uint64_t native = incoming.function(node.getFunction());
  if (is_kernel) {
    kernel.kern = from_word<CUkernel>(native);
    kernel.ctx = from_word<CUcontext>(incoming.handle(wire::HandleKind::context, node.getContext(), true));
    if (!kernel.ctx) kernel.ctx = replay.context();
  } else {
    kernel.func = from_word<CUfunction>(native);
  }
  kernel.gridDimX = node.getGridX();
  kernel.gridDimY = node.getGridY();
  kernel.gridDimZ = node.getGridZ();
  kernel.blockDimX = node.getBlockX();
  kernel.blockDimY = node.getBlockY();
  kernel.blockDimZ = node.getBlockZ();
  kernel.sharedMemBytes = node.getSharedBytes();
  out.packed_bytes = packed.size();
  if (packed.size() == 0) return CUDA_SUCCESS;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, const_cast<capnp::byte*>(packed.begin()),
                   CU_LAUNCH_PARAM_BUFFER_SIZE, &out.packed_bytes, CU_LAUNCH_PARAM_END};
  std::memcpy(out.extra, extra, sizeof extra);
  kernel.extra = out.extra;
  return CUDA_SUCCESS;
}

CUresult read_parameters(Replay& replay, Incoming& incoming, schema::GraphNode::Reader node, NodeParameters& out) {
  out.all.type = CUgraphNodeType(node.getKind());
  switch (node.getKind()) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return kernel_parameters(replay, incoming, node, out);
    case CU_GRAPH_NODE_TYPE_HOST: {
      CUDA_HOST_NODE_PARAMS host{};
      CUresult result = replay.state().callbacks().for_graph(node.getCallback(), host);
      out.all.host.fn = host.fn;
      out.all.host.userData = host.userData;
      return result;
    }
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      if (Operation(node.getOperation()) != Operation::add) return CUDA_ERROR_NOT_SUPPORTED;
      out.all.conditional.handle = node.getCondition();
      out.all.conditional.type = CUgraphConditionalNodeType(node.getConditionType());
      out.all.conditional.size = node.getBodies().size();
      out.all.conditional.ctx =
          from_word<CUcontext>(incoming.handle(wire::HandleKind::context, node.getContext(), true));
      if (!out.all.conditional.ctx) out.all.conditional.ctx = replay.context();
      return CUDA_SUCCESS;
    default: throw ProtocolFault{"graph_node: a kind that has its own call"};
  }
}

CUresult add(Replay& replay, Incoming& incoming, schema::GraphNode::Reader node, NodeParameters& parameters) {
  const DriverTable& driver = replay.driver();
  auto list = node.getDependencies();
  size_t count = incoming.count(list.size(), sizeof(uint64_t));
  auto graph = from_word<CUgraph>(incoming.handle(wire::HandleKind::graph, node.getGraph(), false));
  Room<CUgraphNode> dependencies = incoming.handles<CUgraphNode>(wire::HandleKind::graph_node, list, count);
  const CUgraphEdgeData* edges = nullptr;
  Items<CUgraphEdgeData> data = incoming.items<CUgraphEdgeData>(node.getEdges(), node.getEdges().size() ? count : 0);
  if (node.getEdges().size()) edges = data.data();
  CUresult result = incoming.ready(driver.cuGraphAddNode_v2 != nullptr);
  CUgraphNode made = nullptr;
  if (!result) result = driver.cuGraphAddNode_v2(&made, graph, dependencies.data(), edges, count, &parameters.all);
  if (result) return result;
  incoming.insert(wire::HandleKind::graph_node, node.getNode(), word(made));
  if (node.getKind() != CU_GRAPH_NODE_TYPE_CONDITIONAL) return result;
  auto bodies = node.getBodies();
  for (unsigned i = 0; i < bodies.size(); ++i) {
    incoming.insert(wire::HandleKind::graph, bodies[i], word(parameters.all.conditional.phGraph_out[i]));
    replay.state().inner_graphs().insert(bodies[i]);
  }
  return result;
}

// The calls for one kind are older than the generic ones, and keep values that they have no argument for (a kernel's
// attributes).
CUresult set(Replay& replay, Incoming& incoming, schema::GraphNode::Reader node, const NodeParameters& parameters) {
  const DriverTable& driver = replay.driver();
  auto target = from_word<CUgraphNode>(incoming.handle(wire::HandleKind::graph_node, node.getNode(), false));
  bool in_exec = Operation(node.getOperation()) == Operation::set_in_exec;
  auto exec =
      in_exec ? from_word<CUgraphExec>(incoming.handle(wire::HandleKind::graph_exec, node.getExec(), false)) : nullptr;
  if (CUresult error = incoming.ready(true)) return error;
  if (node.getKind() == CU_GRAPH_NODE_TYPE_HOST) {
    CUDA_HOST_NODE_PARAMS host{parameters.all.host.fn, parameters.all.host.userData};
    const CUDA_HOST_NODE_PARAMS* given = &host;
    return in_exec ? drive(driver.cuGraphExecHostNodeSetParams, exec, target, given)
                   : drive(driver.cuGraphHostNodeSetParams, target, given);
  }
  const CUDA_KERNEL_NODE_PARAMS_v3& from = parameters.all.kernel;
  CUDA_KERNEL_NODE_PARAMS kernel{from.func,         from.gridDimX,  from.gridDimY,  from.gridDimZ,
                                 from.blockDimX,    from.blockDimY, from.blockDimZ, from.sharedMemBytes,
                                 from.kernelParams, from.extra,     from.kern,      from.ctx};
  const CUDA_KERNEL_NODE_PARAMS* given = &kernel;
  return in_exec ? drive(driver.cuGraphExecKernelNodeSetParams_v2, exec, target, given)
                 : drive(driver.cuGraphKernelNodeSetParams_v2, target, given);
}

// The parameters of a kernel node as the driver reports them, packed as the client's launches are. After a fault the
// driver does not report their places, but it did when the function was looked up.
CUresult pack(Replay& replay, const CUDA_KERNEL_NODE_PARAMS& kernel, std::vector<std::byte>& packed) {
  const DriverTable& driver = replay.driver();
  for (void** entry = kernel.extra; entry && *entry != CU_LAUNCH_PARAM_END; entry += 2) {
    if (*entry == CU_LAUNCH_PARAM_BUFFER_SIZE)
      packed.resize(std::min<size_t>(*static_cast<size_t*>(entry[1]), wire::kLaunchParameterBytesMax));
  }
  for (void** entry = kernel.extra; entry && *entry != CU_LAUNCH_PARAM_END; entry += 2) {
    if (*entry == CU_LAUNCH_PARAM_BUFFER_POINTER && !packed.empty())
      std::memcpy(packed.data(), entry[1], packed.size());
  }
  if (!kernel.kernelParams) return CUDA_SUCCESS;
  auto info = [&](size_t index, size_t& offset, size_t& bytes) {
    return kernel.func ? drive(driver.cuFuncGetParamInfo, kernel.func, index, &offset, &bytes)
                       : drive(driver.cuKernelGetParamInfo, kernel.kern, index, &offset, &bytes);
  };
  auto copy = [&](size_t index, size_t offset, size_t bytes) {
    if (offset + bytes > wire::kLaunchParameterBytesMax || !kernel.kernelParams[index]) return false;
    packed.resize(std::max(packed.size(), offset + bytes));
    std::memcpy(packed.data() + offset, kernel.kernelParams[index], bytes);
    return true;
  };
  size_t index = 0, offset = 0, bytes = 0;
  CUresult told = CUDA_SUCCESS;
  while ((told = info(index, offset, bytes)) == CUDA_SUCCESS && copy(index, offset, bytes)) ++index;
  if (!cuda_abi::is_sticky(told)) return CUDA_SUCCESS;  // there is no parameter of that index
  const ParameterLayout* known = replay.state().modules().parameters_of(
      kernel.func ? static_cast<const void*>(kernel.func) : static_cast<const void*>(kernel.kern));
  if (!known) return told;
  for (index = 0; index < known->offsets.size() && copy(index, known->offsets[index], known->sizes[index]);) ++index;
  return CUDA_SUCCESS;
}

void query(Replay& replay, Incoming& incoming, schema::GraphNode::Reader node) {
  const DriverTable& driver = replay.driver();
  auto target = from_word<CUgraphNode>(incoming.handle(wire::HandleKind::graph_node, node.getNode(), false));
  bool is_host = node.getKind() == CU_GRAPH_NODE_TYPE_HOST;
  CUresult result = incoming.ready(is_host ? driver.cuGraphHostNodeGetParams != nullptr
                                           : driver.cuGraphKernelNodeGetParams_v2 != nullptr);
  CUDA_HOST_NODE_PARAMS host{};
  CUDA_KERNEL_NODE_PARAMS kernel{};
  if (!result)
    result = is_host ? driver.cuGraphHostNodeGetParams(target, &host)
                     : driver.cuGraphKernelNodeGetParams_v2(target, &kernel);
  std::vector<std::byte> packed;
  if (!result && !is_host) result = pack(replay, kernel, packed);
  ReplyMessage<schema::GraphNodeReply> message(packed.size(), 1);
  auto reply = message.results();
  if (!result && is_host) reply.setCallback(replay.state().callbacks().number_of(host));
  if (!result && !is_host) {
    uint64_t function = incoming.known(wire::HandleKind::function, word(kernel.func));
    reply.setFunction(function ? function : incoming.known(wire::HandleKind::kernel, word(kernel.kern)));
    reply.setGridX(kernel.gridDimX);
    reply.setGridY(kernel.gridDimY);
    reply.setGridZ(kernel.gridDimZ);
    reply.setBlockX(kernel.blockDimX);
    reply.setBlockY(kernel.blockDimY);
    reply.setBlockZ(kernel.blockDimZ);
    reply.setSharedBytes(kernel.sharedMemBytes);
    reply.setParameters(kj::arrayPtr(reinterpret_cast<const capnp::byte*>(packed.data()), packed.size()));
  }
  incoming.reply(message.message(), reply, result);
}

}  // namespace

void graph_node(Replay& replay, Call& call) {
  Incoming incoming(replay, call, false);
  auto node = call.message.getRoot<schema::GraphNode>();
  if (node.getOperation() > uint8_t(Operation::query)) throw ProtocolFault{"graph_node: unknown operation"};
  if (Operation(node.getOperation()) == Operation::query) return query(replay, incoming, node);
  NodeParameters parameters;
  CUresult result = read_parameters(replay, incoming, node, parameters);
  if (result == CUDA_SUCCESS) {
    result = Operation(node.getOperation()) == Operation::add ? add(replay, incoming, node, parameters)
                                                              : set(replay, incoming, node, parameters);
  }
  ReplyMessage<schema::GraphNodeReply> message(0, 0);
  incoming.reply(message.message(), message.results(), result);
}

}  // namespace gpuwire::server
