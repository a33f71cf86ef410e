// Launches and kernel nodes: the memory of frames and libraries.
#include <bit>

#include "server/ledger/worker/charges.hpp"
#include "server/ledger/worker/context_charges.hpp"
#include "server/ledger/worker/frame_charges.hpp"
#include "server/ledger/worker/graph_charges.hpp"
#include "server/ledger/worker/library_charges.hpp"

namespace gpuwire::server {

bool FrameCharges::seen(CUfunction function, uint64_t& key) const {
  CUcontext context = nullptr;
  parts_.driver.cuCtxGetCurrent(&context);
  key = reinterpret_cast<uint64_t>(function) ^ std::rotl(reinterpret_cast<uint64_t>(context), 32);
  return seen_[(key >> 4) % kSeenMax].load(std::memory_order_relaxed) == key;
}

CUresult FrameCharges::reserve(CUfunction function, CUcontext context) {
  CUcontext current = nullptr;
  const DriverTable& driver = parts_.driver;
  if (!context || (driver.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context)) return reserve(function);
  if (CUresult error = driver.cuCtxPushCurrent_v2(context)) return error;
  CUresult result = reserve(function);
  driver.cuCtxPopCurrent_v2(&current);
  return result;
}

CUresult FrameCharges::inspect(CUfunction function, uint64_t key) {
  if (CUresult error = parts_.libraries->use(function)) return error;
  // The software device's threads have their frames on CPU stacks.
  if (!parts_.software) {
    if (CUresult error = reserve_frame(function)) return error;
  }
  seen_[(key >> 4) % kSeenMax].store(key, std::memory_order_relaxed);
  return CUDA_SUCCESS;
}

CUresult FrameCharges::reserve_frame(CUfunction function) {
  int bytes = 0;
  CUdevice device = 0;
  const DriverTable& driver = parts_.driver;
  CUresult told = driver.cuFuncGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function);
  // The function may be a library's CUkernel.
  if (told != CUDA_SUCCESS && driver.cuKernelGetAttribute && driver.cuCtxGetDevice(&device) == CUDA_SUCCESS)
    told = driver.cuKernelGetAttribute(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, reinterpret_cast<CUkernel>(function),
                                       device);
  return told == CUDA_SUCCESS && bytes > 0 ? parts_.contexts->reserve_frames(uint64_t(bytes)) : CUDA_SUCCESS;
}

void FrameCharges::forget() {
  for (auto& entry : seen_) entry.store(0, std::memory_order_relaxed);
}

namespace {

CUresult fits(CUfunction function) { return ledger_parts().frames->reserve(function); }
// Reserves for a node that may name its kernel's context.
template <class Params>
CUresult fits_there(const Params& params) {
  return ledger_parts().frames->reserve(params.func ? params.func : reinterpret_cast<CUfunction>(params.kern),
                                        params.ctx);
}

CUresult launch_kernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                       unsigned bz, unsigned shared, CUstream stream, void** params, void** extra) {
  if (CUresult error = fits(function)) return error;
  return ledger_parts().driver.cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}
CUresult launch_kernel_ex(const CUlaunchConfig* config, CUfunction function, void** params, void** extra) {
  if (CUresult error = fits(function)) return error;
  return ledger_parts().driver.cuLaunchKernelEx(config, function, params, extra);
}
CUresult launch_cooperative_kernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                   unsigned bz, unsigned shared, CUstream stream, void** params) {
  if (CUresult error = fits(function)) return error;
  return ledger_parts().driver.cuLaunchCooperativeKernel(function, gx, gy, gz, bx, by, bz, shared, stream, params);
}

template <class Add>
CUresult make_kernel_node(CUfunction function, CUkernel kernel, size_t edges, Add&& add) {
  GraphCharges& graphs = *ledger_parts().graphs;
  return graphs.make(graphs.kernel_bytes(function, kernel) + GraphCharges::edges_bytes(edges), add);
}

CUresult graph_add_kernel_node(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                               const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (CUresult error = fits(params->func)) return error;
  return make_kernel_node(params->func, nullptr, count, [&] {
    return ledger_parts().driver.cuGraphAddKernelNode(node, graph, dependencies, count, params);
  });
}
CUresult graph_add_kernel_node_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                  const CUDA_KERNEL_NODE_PARAMS_v2* params) {
  if (CUresult error = fits_there(*params)) return error;
  return make_kernel_node(params->func, params->kern, count, [&] {
    return ledger_parts().driver.cuGraphAddKernelNode_v2(node, graph, dependencies, count, params);
  });
}
CUresult graph_kernel_node_set_params(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (CUresult error = fits(params->func)) return error;
  return ledger_parts().graphs->change(node, params->func, nullptr,
                                       [&] { return ledger_parts().driver.cuGraphKernelNodeSetParams(node, params); });
}
CUresult graph_kernel_node_set_params_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2* params) {
  if (CUresult error = fits_there(*params)) return error;
  return ledger_parts().graphs->change(node, params->func, params->kern, [&] {
    return ledger_parts().driver.cuGraphKernelNodeSetParams_v2(node, params);
  });
}
CUresult graph_exec_kernel_node_set_params(CUgraphExec exec, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  if (CUresult error = fits(params->func)) return error;
  return ledger_parts().driver.cuGraphExecKernelNodeSetParams(exec, node, params);
}
CUresult graph_exec_kernel_node_set_params_v2(CUgraphExec exec, CUgraphNode node,
                                              const CUDA_KERNEL_NODE_PARAMS_v2* params) {
  if (CUresult error = fits_there(*params)) return error;
  return ledger_parts().driver.cuGraphExecKernelNodeSetParams_v2(exec, node, params);
}

CUresult fits(const CUgraphNodeParams& params) {
  return params.type == CU_GRAPH_NODE_TYPE_KERNEL ? fits_there(params.kernel) : CUDA_SUCCESS;
}

CUresult graph_node_set_params(CUgraphNode node, CUgraphNodeParams* params) {
  if (CUresult error = fits(*params)) return error;
  auto set = [&] { return ledger_parts().driver.cuGraphNodeSetParams(node, params); };
  if (params->type != CU_GRAPH_NODE_TYPE_KERNEL) return set();
  return ledger_parts().graphs->change(node, params->kernel.func, params->kernel.kern, set);
}
CUresult graph_exec_node_set_params(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams* params) {
  if (CUresult error = fits(*params)) return error;
  return ledger_parts().driver.cuGraphExecNodeSetParams(exec, node, params);
}

// --- nodes of all kinds --------------------------------------------------------------------------------------------

// Returns the host memory of a new node with the graphs in it.
uint64_t node_bytes(const CUgraphNodeParams& params) {
  GraphCharges& graphs = *ledger_parts().graphs;
  switch (params.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return graphs.kernel_bytes(params.kernel.func, params.kernel.kern);
    case CU_GRAPH_NODE_TYPE_GRAPH:
      // A graph that moves into the node is not copied.
      return kGraphNodeHostBytes + (params.graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE
                                        ? 0
                                        : graphs.graph_bytes(params.graph.graph));
    default: return kGraphNodeHostBytes;
  }
}

template <class Add>
CUresult add_node(CUgraphNode* node, const CUgraphNodeParams& params, size_t edges, Add&& add) {
  LedgerParts& parts = ledger_parts();
  if (CUresult error = fits(params)) return error;
  CUresult result = parts.graphs->make(node_bytes(params) + GraphCharges::edges_bytes(edges), [&] {
    if (params.type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) return add();
    // The software device takes an allocation node's memory when the node is made.
    const uint64_t at_once = parts.software ? params.alloc.bytesize : 0;
    return parts.graphs->within({{params.alloc.poolProps.location.id, at_once}}, add);
  });
  if (result == CUDA_SUCCESS && params.type == CU_GRAPH_NODE_TYPE_CONDITIONAL && params.conditional.phGraph_out) {
    CUgraph* bodies = params.conditional.phGraph_out;
    parts.graphs->has_bodies(*node, {bodies, bodies + params.conditional.size});
  }
  return result;
}

CUresult graph_add_node(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                        CUgraphNodeParams* params) {
  return add_node(node, *params, count,
                  [&] { return ledger_parts().driver.cuGraphAddNode(node, graph, dependencies, count, params); });
}
CUresult graph_add_node_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                           const CUgraphEdgeData* edges, size_t count, CUgraphNodeParams* params) {
  return add_node(node, *params, count, [&] {
    return ledger_parts().driver.cuGraphAddNode_v2(node, graph, dependencies, edges, count, params);
  });
}

}  // namespace

void wrap_launches(DriverTable& table) {
  wrap(table.cuLaunchKernel, &launch_kernel);
  wrap(table.cuLaunchKernelEx, &launch_kernel_ex);
  wrap(table.cuLaunchCooperativeKernel, &launch_cooperative_kernel);
  wrap(table.cuGraphAddKernelNode, &graph_add_kernel_node);
  wrap(table.cuGraphAddKernelNode_v2, &graph_add_kernel_node_v2);
  wrap(table.cuGraphKernelNodeSetParams, &graph_kernel_node_set_params);
  wrap(table.cuGraphKernelNodeSetParams_v2, &graph_kernel_node_set_params_v2);
  wrap(table.cuGraphExecKernelNodeSetParams, &graph_exec_kernel_node_set_params);
  wrap(table.cuGraphExecKernelNodeSetParams_v2, &graph_exec_kernel_node_set_params_v2);
  wrap(table.cuGraphNodeSetParams, &graph_node_set_params);
  wrap(table.cuGraphExecNodeSetParams, &graph_exec_node_set_params);
  wrap(table.cuGraphAddNode, &graph_add_node);
  wrap(table.cuGraphAddNode_v2, &graph_add_node_v2);
}

}  // namespace gpuwire::server
