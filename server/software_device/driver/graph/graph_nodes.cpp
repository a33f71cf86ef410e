// Nodes of graphs: adding them, and their work.
#include <algorithm>

#include "server/software_device/driver/graph/graph_lookup.hpp"
#include "server/software_device/driver/graph/graph_payload.hpp"
#include "server/software_device/driver/call/refusal.hpp"

using namespace gpuwire::software_device;

namespace {

// Returns whether nodes of the type (kernels, copies and memsets) can be neither added nor changed after a fault of the
// context. The other nodes can (measured on driver 580).
bool needs_device(CUgraphNodeType type) {
  return type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_MEMCPY || type == CU_GRAPH_NODE_TYPE_MEMSET;
}

// Adds the node that `make` describes, in the named context or the current one. Handles are checked before the
// context's fault.
template <typename Make>
CUresult add(CUgraphNodeType type, CUgraphNode* out, CUgraph graph_handle, const CUgraphNode* dependencies,
             size_t count, Make&& make, CUcontext context_handle = nullptr) {
  const auto known = [](CUgraphNode node) { return driver().graph_nodes.find(node) != nullptr; };
  return with_any_context([&](Context& current) -> CUresult {
    const auto slot = context_handle == nullptr ? nullptr : driver().contexts.find(context_handle);
    const auto named = slot == nullptr ? nullptr : slot->live();
    if (out == nullptr || (count != 0 && dependencies == nullptr) || (context_handle != nullptr && named == nullptr)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    Context& context = named != nullptr ? *named : current;
    return with_graph(graph_handle, [&](Graph& graph) -> CUresult {
      if (!std::all_of(dependencies, dependencies + count, known)) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      if (const CUresult fault = current.fault(); fault != CUDA_SUCCESS && needs_device(type)) {
        return fault;
      }
      PayloadOrError payload = make(context);
      if (!payload) {
        return payload.error();
      }
      const auto node =
          add_node(graph, *std::move(payload), context.weak_from_this(), {dependencies, dependencies + count});
      if (!node) {
        return node.error();
      }
      *out = (*node)->handle;
      return CUDA_SUCCESS;
    });
  });
}

template <typename Parameters>
CUresult get(CUgraphNode handle, Parameters* out) {
  return with_node(handle, [&](GraphNode& node) -> CUresult {
    return out != nullptr && describe(node, *out) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

// Replaces the payload by another of the same type.
CUresult replace(GraphNode& node, PayloadOrError payload) {
  if (!payload) {
    return payload.error();
  }
  if (payload->index() != node.payload.index()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  node.payload = *std::move(payload);
  return CUDA_SUCCESS;
}

// Replaces a node's payload.
template <typename Make>
CUresult set(CUgraphNodeType type, CUgraphNode handle, Make&& make) {
  return with_any_context([&](Context& context) {
    return with_node(handle, [&](GraphNode& node) -> CUresult {
      const CUresult fault = context.fault();
      return fault != CUDA_SUCCESS && needs_device(type) ? fault : replace(node, make(context));
    });
  });
}

template <typename Holder>
CUresult get_event(CUgraphNode handle, CUevent* out) {
  return with_node(handle, [&](GraphNode& node) -> CUresult {
    const auto* const holder = std::get_if<Holder>(&node.payload);
    if (holder == nullptr || out == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *out = holder->event->handle;
    return CUDA_SUCCESS;
  });
}

template <typename Holder>
PayloadOrError event_payload(CUevent handle) {
  auto event = driver().events.find(handle);
  if (event == nullptr) {
    return tl::unexpected(handle == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE);
  }
  return NodePayload(Holder{std::move(event)});
}

}  // namespace

CUresult cuGraphAddEmptyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count) {
  return add(CU_GRAPH_NODE_TYPE_EMPTY, out, graph, dependencies, count,
             [](Context&) { return PayloadOrError(NodePayload(EmptyWork{})); });
}

CUresult cuGraphAddKernelNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                              const CUDA_KERNEL_NODE_PARAMS_v1* parameters) {
  return with_context([&](Context&) -> CUresult {
    return parameters == nullptr ? CUDA_ERROR_INVALID_VALUE
                                 : add(CU_GRAPH_NODE_TYPE_KERNEL, out, graph, dependencies, count,
                                       [&](Context& context) { return payload_of(context, *parameters); });
  });
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS_v2* parameters) {
  return with_context([&](Context&) -> CUresult {
    return parameters == nullptr ? CUDA_ERROR_INVALID_VALUE
                                 : add(
                                       CU_GRAPH_NODE_TYPE_KERNEL, out, graph, dependencies, count,
                                       [&](Context& context) { return payload_of(context, *parameters); },
                                       parameters->func == nullptr ? parameters->ctx : nullptr);
  });
}

CUresult cuGraphAddMemcpyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                              const CUDA_MEMCPY3D* parameters, CUcontext context) {
  return with_context([&](Context&) -> CUresult {
    return parameters == nullptr ? CUDA_ERROR_INVALID_VALUE
                                 : add(
                                       CU_GRAPH_NODE_TYPE_MEMCPY, out, graph, dependencies, count,
                                       [&](Context&) { return payload_of(*parameters); }, context);
  });
}

CUresult cuGraphAddMemsetNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS_v1* parameters, CUcontext context) {
  // Only a named context must be free of faults (measured on driver 580): without one, the node is added like a node
  // that needs no device.
  const CUgraphNodeType type = context == nullptr ? CU_GRAPH_NODE_TYPE_EMPTY : CU_GRAPH_NODE_TYPE_MEMSET;
  return parameters == nullptr
             ? CUDA_ERROR_INVALID_VALUE
             : add(
                   type, out, graph, dependencies, count, [&](Context&) { return payload_of(*parameters); }, context);
}

CUresult cuGraphAddHostNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                            const CUDA_HOST_NODE_PARAMS_v1* parameters) {
  return parameters == nullptr ? CUDA_ERROR_INVALID_VALUE
                               : add(CU_GRAPH_NODE_TYPE_HOST, out, graph, dependencies, count,
                                     [&](Context&) { return payload_of(parameters->fn, parameters->userData); });
}

CUresult cuGraphAddChildGraphNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                  CUgraph child) {
  return add(CU_GRAPH_NODE_TYPE_GRAPH, out, graph, dependencies, count, [&](Context&) { return child_payload(child); });
}

CUresult cuGraphAddEventRecordNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                   CUevent event) {
  return add(CU_GRAPH_NODE_TYPE_EVENT_RECORD, out, graph, dependencies, count,
             [&](Context&) { return event_payload<RecordEvent>(event); });
}

CUresult cuGraphAddEventWaitNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                 CUevent event) {
  return add(CU_GRAPH_NODE_TYPE_WAIT_EVENT, out, graph, dependencies, count,
             [&](Context&) { return event_payload<WaitForEvent>(event); });
}

CUresult cuGraphAddBatchMemOpNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                  const CUDA_BATCH_MEM_OP_NODE_PARAMS_v1* parameters) {
  return parameters == nullptr
             ? CUDA_ERROR_INVALID_VALUE
             : add(CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, out, graph, dependencies, count, [&](Context&) {
                 return memory_operations_payload(parameters->paramArray, parameters->count, parameters->flags);
               });
}

CUresult cuGraphAddMemAllocNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  return parameters == nullptr ? CUDA_ERROR_INVALID_VALUE
                               : add(CU_GRAPH_NODE_TYPE_MEM_ALLOC, out, graph, dependencies, count,
                                     [&](Context& context) { return payload_of(context, *parameters); });
}

CUresult cuGraphAddMemFreeNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                               CUdeviceptr address) {
  return add(CU_GRAPH_NODE_TYPE_MEM_FREE, out, graph, dependencies, count,
             [&](Context&) { return free_payload(address); });
}

CUresult cuGraphAddNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                        CUgraphNodeParams* parameters) {
  if (parameters == nullptr) {
    return with_any_context([](Context&) { return CUDA_ERROR_INVALID_VALUE; });
  }
  const CUresult result = add(parameters->type, out, graph, dependencies, count,
                              [&](Context& context) { return payload_of(context, *parameters); });
  if (result != CUDA_SUCCESS || parameters->type != CU_GRAPH_NODE_TYPE_CONDITIONAL) {
    return result;
  }
  return with_node(*out, [&](GraphNode& node) {
    for (const auto& body : std::get<ConditionalGraphs>(node.payload).bodies) {
      node.body_handles.push_back(body->handle);
    }
    parameters->conditional.phGraph_out = node.body_handles.data();
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphAddNode_v2(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                           const CUgraphEdgeData* edges, size_t count, CUgraphNodeParams* parameters) {
  return plain_edges(edges, count) ? cuGraphAddNode(out, graph, dependencies, count, parameters)
                                   : not_supported("a graph's edge with data");
}

// After a fault the driver does not report the layout of a function's parameters, and so not their values.
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2* out) { return get(node, out); }
CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1* out) {
  CUDA_KERNEL_NODE_PARAMS_v2 all{};
  const CUresult result = out == nullptr ? CUDA_ERROR_INVALID_VALUE : cuGraphKernelNodeGetParams_v2(node, &all);
  if (result == CUDA_SUCCESS) {
    *out = {all.func,      all.gridDimX,  all.gridDimY,       all.gridDimZ,     all.blockDimX,
            all.blockDimY, all.blockDimZ, all.sharedMemBytes, all.kernelParams, all.extra};
  }
  return result;
}
CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D* out) { return get(node, out); }
CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS_v1* out) { return get(node, out); }
CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS_v1* out) { return get(node, out); }
CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS* out) { return get(node, out); }
CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr* out) { return get(node, out); }
CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent* out) { return get_event<RecordEvent>(node, out); }
CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent* out) { return get_event<WaitForEvent>(node, out); }

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode handle, CUgraph* out) {
  return with_node(handle, [&](GraphNode& node) -> CUresult {
    const auto* const child = std::get_if<ChildGraph>(&node.payload);
    if (child == nullptr || out == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *out = child->graph->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* parameters) {
  return with_context([&](Context&) -> CUresult {
    return parameters == nullptr ? CUDA_ERROR_INVALID_VALUE
                                 : set(CU_GRAPH_NODE_TYPE_KERNEL, node,
                                       [&](Context& context) { return payload_of(context, *parameters); });
  });
}
CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2* parameters) {
  return with_context([&](Context&) -> CUresult {
    return parameters == nullptr ? CUDA_ERROR_INVALID_VALUE
                                 : set(CU_GRAPH_NODE_TYPE_KERNEL, node,
                                       [&](Context& context) { return payload_of(context, *parameters); });
  });
}
CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D* parameters) {
  return with_context([&](Context&) -> CUresult {
    return parameters == nullptr
               ? CUDA_ERROR_INVALID_VALUE
               : set(CU_GRAPH_NODE_TYPE_MEMCPY, node, [&](Context&) { return payload_of(*parameters); });
  });
}
CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS_v1* parameters) {
  return parameters == nullptr
             ? CUDA_ERROR_INVALID_VALUE
             : set(CU_GRAPH_NODE_TYPE_MEMSET, node, [&](Context&) { return payload_of(*parameters); });
}
CUresult cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS_v1* parameters) {
  return parameters == nullptr ? CUDA_ERROR_INVALID_VALUE : set(CU_GRAPH_NODE_TYPE_HOST, node, [&](Context&) {
    return payload_of(parameters->fn, parameters->userData);
  });
}
CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event) {
  return with_node(node, [&](GraphNode& found) { return replace(found, event_payload<RecordEvent>(event)); });
}
CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event) {
  return with_node(node, [&](GraphNode& found) { return replace(found, event_payload<WaitForEvent>(event)); });
}
CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* parameters) {
  return with_any_context([&](Context&) -> CUresult {
    return parameters == nullptr
               ? CUDA_ERROR_INVALID_VALUE
               : set(parameters->type, node, [&](Context& context) { return payload_of(context, *parameters); });
  });
}

// --- attributes of kernels

namespace {

template <typename Body>
CUresult with_kernel_node(CUgraphNode handle, Body&& body) {
  return with_node(handle, [&](GraphNode& node) -> CUresult {
    auto* const work = std::get_if<KernelWork>(&node.payload);
    return work == nullptr ? CUDA_ERROR_INVALID_VALUE : body(node, *work);
  });
}

}  // namespace

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode handle, CUkernelNodeAttrID attribute,
                                       const CUkernelNodeAttrValue* value) {
  return with_kernel_node(handle, [&](GraphNode& node, KernelWork& work) -> CUresult {
    // Events are for launches only (measured on driver 580).
    if (value == nullptr || attribute == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT ||
        attribute == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const auto context = node.context.lock();
    if (const CUresult fault = context == nullptr ? CUDA_SUCCESS : context->fault(); fault != CUDA_SUCCESS) {
      return fault;
    }
    if (attribute == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
      work.cooperative = value->cooperative != 0;
    }
    node.attributes[attribute] = *value;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode handle, CUkernelNodeAttrID attribute, CUkernelNodeAttrValue* value) {
  return with_kernel_node(handle, [&](GraphNode& node, KernelWork& work) -> CUresult {
    if (value == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const auto found = node.attributes.find(attribute);
    *value = found == node.attributes.end() ? CUkernelNodeAttrValue{} : found->second;
    if (attribute == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
      value->cooperative = work.cooperative ? 1 : 0;
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode target, CUgraphNode source) {
  return with_kernel_node(source, [&](GraphNode& from, KernelWork& from_work) -> CUresult {
    const auto to = driver().graph_nodes.find(target);
    auto* const work = to == nullptr ? nullptr : std::get_if<KernelWork>(&to->payload);
    if (work == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    to->attributes = from.attributes;
    work->cooperative = from_work.cooperative;
    return CUDA_SUCCESS;
  });
}
