// Executable graphs.
#include <algorithm>

#include "server/software_device/driver/stream/capture.hpp"
#include "server/software_device/driver/graph/graph_lookup.hpp"
#include "server/software_device/driver/graph/graph_payload.hpp"
#include "server/software_device/driver/call/refusal.hpp"

using namespace gpuwire::software_device;

namespace {

// Flags that change no result: they choose the place of the upload, and priorities.
constexpr cuuint64_t kKnownFlags = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                   CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;

CUresult instantiate(CUgraphExec* out, CUgraph handle, cuuint64_t flags) {
  if (const CUresult refused = permit_unless_failed(); refused != CUDA_SUCCESS) {
    return refused;
  }
  const auto make = [&](Graph& graph) -> CUresult {
    if (out == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if ((flags & ~kKnownFlags) != 0) {
      const bool by_device = (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0;
      return by_device ? not_supported("a graph that the device launches") : CUDA_ERROR_INVALID_VALUE;
    }
    auto steps = flatten(graph);
    if (!steps) {
      return steps.error();
    }
    auto exec = std::make_shared<GraphExec>();
    exec->handle = driver().graph_execs.reserve();
    exec->flags = flags;
    exec->steps = *std::move(steps);
    exec->conditions = graph.conditions;
    driver().graph_execs.insert(exec->handle, exec);
    *out = exec->handle;
    return CUDA_SUCCESS;
  };
  return with_context([&](Context&) { return with_graph(handle, make); });
}

GraphExec::Step* find_step(GraphExec& exec, CUgraphNode node) {
  const auto found = std::find_if(exec.steps.begin(), exec.steps.end(),
                                  [&](const GraphExec::Step& step) { return step.node == node; });
  return node == nullptr || found == exec.steps.end() ? nullptr : &*found;
}

template <typename Make>
CUresult set(CUgraphExec handle, CUgraphNode node, Make&& make) {
  return with_any_context([&](Context& context) {
    return with_exec(handle, [&](GraphExec& exec) -> CUresult {
      if (const CUresult fault = node == nullptr ? CUDA_SUCCESS : context.fault(); fault != CUDA_SUCCESS) {
        return fault;
      }
      GraphExec::Step* const step = find_step(exec, node);
      if (step == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      PayloadOrError payload = make(context);
      if (!payload) {
        return payload.error();
      }
      if (payload->index() != step->payload.index()) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      step->payload = *std::move(payload);
      return CUDA_SUCCESS;
    });
  });
}

CUgraphExecUpdateResult compare(const std::vector<GraphExec::Step>& before, const std::vector<GraphExec::Step>& after,
                                CUgraphNode* error_node) {
  if (before.size() != after.size()) {
    return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  }
  for (size_t i = 0; i < before.size(); ++i) {
    *error_node = after[i].node;
    if (before[i].dependencies != after[i].dependencies) {
      return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    }
    if (before[i].payload.index() != after[i].payload.index()) {
      return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    }
  }
  *error_node = nullptr;
  return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

CUresult update(CUgraphExec handle, CUgraph graph_handle, CUgraphNode* error_node, CUgraphExecUpdateResult* result) {
  return with_exec(handle, [&](GraphExec& exec) -> CUresult {
    const auto graph = driver().graphs.find(graph_handle);
    if (graph == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto steps = flatten(*graph);
    if (!steps) {
      *result = CU_GRAPH_EXEC_UPDATE_ERROR;
      return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    *result = compare(exec.steps, *steps, error_node);
    if (*result != CU_GRAPH_EXEC_UPDATE_SUCCESS) {
      return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    // Later calls still refer to the nodes of the graph from which this one was instantiated.
    for (size_t i = 0; i < exec.steps.size(); ++i) {
      exec.steps[i].payload = std::move((*steps)[i].payload);
      exec.steps[i].context = std::move((*steps)[i].context);
    }
    return CUDA_SUCCESS;
  });
}

}  // namespace

// Unknown flags come before everything but cuInit (measured on driver 580).
CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph graph, unsigned long long flags) {
  constexpr unsigned long long kFlagsOfCuda = 0xf;
  if ((flags & ~kFlagsOfCuda) != 0) {
    return with_driver([]() -> CUresult { return CUDA_ERROR_INVALID_VALUE; });
  }
  return instantiate(out, graph, flags);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec* out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  if (parameters == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult result = instantiate(out, graph, parameters->flags);
  parameters->hErrNode_out = nullptr;
  parameters->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result;
}

CUresult cuGraphInstantiate_v2(CUgraphExec* out, CUgraph graph, CUgraphNode* error_node, char* log, size_t log_bytes) {
  if (error_node != nullptr) {
    *error_node = nullptr;
  }
  if (log != nullptr && log_bytes != 0) {
    *log = 0;
  }
  return instantiate(out, graph, 0);
}

CUresult cuGraphInstantiate(CUgraphExec* out, CUgraph graph, CUgraphNode* error_node, char* log, size_t log_bytes) {
  return cuGraphInstantiate_v2(out, graph, error_node, log, log_bytes);
}

CUresult cuGraphExecDestroy(CUgraphExec handle) {
  return with_exec(handle, [&](GraphExec&) {
    driver().graph_execs.take(handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t* flags) {
  return with_exec(handle, [&](GraphExec& exec) -> CUresult {
    if (flags == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = exec.flags;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphUpload(CUgraphExec handle, CUstream stream) {
  return with_stream(stream,
                     [&](Context&, Stream&) { return with_exec(handle, [](GraphExec&) { return CUDA_SUCCESS; }); });
}

CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
  return with_own_stream(stream_handle, [&](Context& context, Stream& stream) -> CUresult {
    if (is_capturing(stream)) {
      return invalidate_capture(stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    return with_exec(handle, [&](GraphExec& exec) { return launch_graph(context, stream, exec); });
  });
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* error_node, CUgraphExecUpdateResult* result) {
  CUgraphNode node = nullptr;
  CUgraphExecUpdateResult outcome = CU_GRAPH_EXEC_UPDATE_ERROR;
  const CUresult returned = update(exec, graph, &node, &outcome);
  if (error_node != nullptr) {
    *error_node = node;
  }
  if (result != nullptr) {
    *result = outcome;
  }
  return returned;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
  CUgraphExecUpdateResultInfo local{};
  CUgraphExecUpdateResultInfo& out = info == nullptr ? local : *info;
  out = {.result = CU_GRAPH_EXEC_UPDATE_ERROR};
  return update(exec, graph, &out.errorNode, &out.result);
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_KERNEL_NODE_PARAMS_v1* parameters) {
  return with_context([&](Context&) -> CUresult {
    return parameters == nullptr ? CUDA_ERROR_INVALID_VALUE
                                 : set(exec, node, [&](Context& context) { return payload_of(context, *parameters); });
  });
}
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS_v2* parameters) {
  return with_context([&](Context&) -> CUresult {
    return parameters == nullptr ? CUDA_ERROR_INVALID_VALUE
                                 : set(exec, node, [&](Context& context) { return payload_of(context, *parameters); });
  });
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D* parameters,
                                        CUcontext) {
  return with_context([&](Context&) -> CUresult {
    return parameters == nullptr ? CUDA_ERROR_INVALID_VALUE
                                 : set(exec, node, [&](Context&) { return payload_of(*parameters); });
  });
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                        const CUDA_MEMSET_NODE_PARAMS_v1* parameters, CUcontext) {
  return parameters == nullptr ? CUDA_ERROR_INVALID_VALUE
                               : set(exec, node, [&](Context&) { return payload_of(*parameters); });
}
CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS_v1* parameters) {
  return parameters == nullptr
             ? CUDA_ERROR_INVALID_VALUE
             : set(exec, node, [&](Context&) { return payload_of(parameters->fn, parameters->userData); });
}
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec handle, CUgraphNode node, CUgraph child) {
  return with_exec(handle, [&](GraphExec& exec) -> CUresult {
    const auto graph = driver().graphs.find(child);
    auto steps = graph == nullptr ? tl::unexpected(CUDA_ERROR_INVALID_VALUE) : flatten(*graph);
    if (!steps) {
      return steps.error();
    }
    std::vector<GraphExec::Step*> own;
    for (GraphExec::Step& step : exec.steps) {
      if (node != nullptr && step.child == node) {
        own.push_back(&step);
      }
    }
    const bool same =
        own.size() == steps->size() && std::equal(own.begin(), own.end(), steps->begin(),
                                                  [](const GraphExec::Step* before, const GraphExec::Step& after) {
                                                    return before->payload.index() == after.payload.index();
                                                  });
    if (own.empty() || !same) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < own.size(); ++i) {
      own[i]->payload = std::move((*steps)[i].payload);
      own[i]->context = std::move((*steps)[i].context);
    }
    return CUDA_SUCCESS;
  });
}
CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams* parameters) {
  return with_any_context([&](Context&) -> CUresult {
    return parameters == nullptr ? CUDA_ERROR_INVALID_VALUE
                                 : set(exec, node, [&](Context& context) { return payload_of(context, *parameters); });
  });
}

CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
  CUgraphNodeParams parameters{};
  parameters.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD;
  parameters.eventRecord.event = event;
  return cuGraphExecNodeSetParams(exec, node, &parameters);
}
CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event) {
  CUgraphNodeParams parameters{};
  parameters.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT;
  parameters.eventWait.event = event;
  return cuGraphExecNodeSetParams(exec, node, &parameters);
}

CUresult cuGraphNodeSetEnabled(CUgraphExec handle, CUgraphNode node, unsigned int enabled) {
  return with_exec(handle, [&](GraphExec& exec) -> CUresult {
    GraphExec::Step* const step = find_step(exec, node);
    const CUgraphNodeType type = step == nullptr ? CU_GRAPH_NODE_TYPE_EMPTY : type_of(step->payload);
    if (type != CU_GRAPH_NODE_TYPE_KERNEL && type != CU_GRAPH_NODE_TYPE_MEMCPY && type != CU_GRAPH_NODE_TYPE_MEMSET) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    step->enabled = enabled != 0;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphNodeGetEnabled(CUgraphExec handle, CUgraphNode node, unsigned int* enabled) {
  return with_exec(handle, [&](GraphExec& exec) -> CUresult {
    const GraphExec::Step* const step = find_step(exec, node);
    if (step == nullptr || enabled == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *enabled = step->enabled ? 1 : 0;
    return CUDA_SUCCESS;
  });
}
