#include "server/software_device/driver/graph/graph_payload.hpp"

#include <algorithm>

#include "server/software_device/driver/copy/copy_request.hpp"
#include "server/software_device/driver/call/driver_state.hpp"
#include "server/software_device/driver/launch/launch_request.hpp"
#include "server/software_device/driver/stream/memory_operations.hpp"
#include "server/software_device/driver/call/refusal.hpp"

namespace gpuwire::software_device {
namespace {

template <typename Parameters>
LaunchRequest request_of_kernel(const Parameters& p, CUfunction function) {
  return {.function = function,
          .grid = {p.gridDimX, p.gridDimY, p.gridDimZ},
          .block = {p.blockDimX, p.blockDimY, p.blockDimZ},
          .dynamic_shared_bytes = p.sharedMemBytes,
          .parameters = p.kernelParams,
          .extra = p.extra};
}

PayloadOrError kernel_payload(Context& context, const LaunchRequest& request) {
  return check_launch(context, request).map([](KernelWork work) { return NodePayload(std::move(work)); });
}

// Sets the position of the address in the array, if there is an array.
void describe_array(const ArrayObject* array, uint64_t address, CUarray& handle, CUmemorytype& type, size_t& x_bytes,
                    size_t& y, size_t& z) {
  if (array == nullptr) {
    return;
  }
  const uint64_t offset = address - reinterpret_cast<uint64_t>(array->level.base);
  handle = array->handle;
  type = CU_MEMORYTYPE_ARRAY;
  x_bytes = offset % array->level.row_bytes;
  y = offset % array->level.slice_bytes / array->level.row_bytes;
  z = offset / array->level.slice_bytes;
}

template <typename Holder>
PayloadOrError event_payload(CUevent handle) {
  auto event = driver().events.find(handle);
  if (event == nullptr) {
    return tl::unexpected(CUDA_ERROR_INVALID_HANDLE);
  }
  return NodePayload(Holder{std::move(event)});
}

}  // namespace

PayloadOrError payload_of(Context& context, const CUDA_KERNEL_NODE_PARAMS_v1& p) {
  return kernel_payload(context, request_of_kernel(p, p.func));
}

PayloadOrError payload_of(Context& context, const CUDA_KERNEL_NODE_PARAMS_v2& p) {
  return kernel_payload(context,
                        request_of_kernel(p, p.func != nullptr ? p.func : reinterpret_cast<CUfunction>(p.kern)));
}

PayloadOrError payload_of(const CUDA_MEMCPY3D& p) {
  return check_copy(request_of(p)).map([](CopyWork work) { return NodePayload(std::move(work)); });
}

PayloadOrError payload_of(const CUDA_MEMSET_NODE_PARAMS_v1& p) {
  const FillWork work{.target = p.dst,
                      .value = p.value,
                      .element_bytes = p.elementSize,
                      .width = p.width,
                      .height = p.height,
                      .pitch = p.pitch};
  if ((p.elementSize != 1 && p.elementSize != 2 && p.elementSize != 4) || p.width == 0 || p.height == 0 ||
      check_fill(work) != CUDA_SUCCESS) {
    return tl::unexpected(CUDA_ERROR_INVALID_VALUE);
  }
  return NodePayload(work);
}

PayloadOrError payload_of(CUhostFn function, void* user) {
  if (function == nullptr) {
    return tl::unexpected(CUDA_ERROR_INVALID_VALUE);
  }
  return NodePayload(HostWork{function, user});
}

PayloadOrError payload_of(Context& context, CUDA_MEM_ALLOC_NODE_PARAMS& p) {
  Device* const device = driver().device(p.poolProps.location.id);
  if (device == nullptr || p.bytesize == 0 || p.poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
      p.poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE || p.poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
    return tl::unexpected(CUDA_ERROR_INVALID_VALUE);
  }
  auto allocation = allocate_for_graph(*device, context.handle(), p.bytesize);
  if (!allocation) {
    return tl::unexpected(allocation.error());
  }
  p.dptr = (*allocation)->address;
  return NodePayload(AllocateMemory{*std::move(allocation)});
}

PayloadOrError free_payload(CUdeviceptr address) {
  if (find_graph_allocation(address) == nullptr) {
    return tl::unexpected(CUDA_ERROR_INVALID_VALUE);
  }
  return NodePayload(FreeMemory{address});
}

bool cannot_be_copied(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const auto& node) {
    const auto* const child = std::get_if<ChildGraph>(&node->payload);
    return std::holds_alternative<ConditionalGraphs>(node->payload) ||
           std::holds_alternative<AllocateMemory>(node->payload) || std::holds_alternative<FreeMemory>(node->payload) ||
           (child != nullptr && cannot_be_copied(*child->graph));
  });
}

PayloadOrError child_payload(CUgraph handle) {
  const auto graph = driver().graphs.find(handle);
  if (graph == nullptr) {
    return tl::unexpected(CUDA_ERROR_INVALID_VALUE);
  }
  if (cannot_be_copied(*graph)) {
    return tl::unexpected(not_supported("a child graph that allocates or decides"));
  }
  auto clone = clone_graph(*graph);
  clone->child = true;
  return NodePayload(ChildGraph{std::move(clone)});
}

PayloadOrError memory_operations_payload(const CUstreamBatchMemOpParams* operations, unsigned count, unsigned flags) {
  return check_memory_operations(operations, count, flags).map([](MemoryOperationsWork work) {
    return NodePayload(std::move(work));
  });
}

PayloadOrError conditional_payload(const CUDA_CONDITIONAL_NODE_PARAMS& p) {
  const auto condition = find_condition(p.handle);
  const bool possible = p.type == CU_GRAPH_COND_TYPE_WHILE ? p.size == 1
                        : p.type == CU_GRAPH_COND_TYPE_IF  ? p.size == 1 || p.size == 2
                                                           : p.size > 0;
  if (condition == nullptr || !possible || p.type > CU_GRAPH_COND_TYPE_SWITCH) {
    return tl::unexpected(CUDA_ERROR_INVALID_VALUE);
  }
  ConditionalGraphs out{condition, p.type, {}};
  for (unsigned i = 0; i < p.size; ++i) {
    out.bodies.push_back(make_graph());
    out.bodies.back()->child = true;
  }
  return NodePayload(std::move(out));
}

PayloadOrError payload_of(Context& context, CUgraphNodeParams& p) {
  switch (p.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      const auto& kernel = p.kernel;
      return kernel_payload(
          context,
          request_of_kernel(kernel, kernel.func != nullptr ? kernel.func : reinterpret_cast<CUfunction>(kernel.kern)));
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: return payload_of(p.memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const auto& fill = p.memset;
      return payload_of(
          CUDA_MEMSET_NODE_PARAMS_v1{fill.dst, fill.pitch, fill.value, fill.elementSize, fill.width, fill.height});
    }
    case CU_GRAPH_NODE_TYPE_HOST: return payload_of(p.host.fn, p.host.userData);
    case CU_GRAPH_NODE_TYPE_GRAPH: return child_payload(p.graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY: return NodePayload(EmptyWork{});
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return memory_operations_payload(p.memOp.paramArray, p.memOp.count, p.memOp.flags);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return event_payload<WaitForEvent>(p.eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return event_payload<RecordEvent>(p.eventRecord.event);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
      CUDA_MEM_ALLOC_NODE_PARAMS_v1 plain{p.alloc.poolProps, p.alloc.accessDescs, p.alloc.accessDescCount,
                                          p.alloc.bytesize, 0};
      PayloadOrError payload = payload_of(context, plain);
      p.alloc.dptr = plain.dptr;
      return payload;
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return free_payload(p.free.dptr);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: return conditional_payload(p.conditional);
    default: return tl::unexpected(not_supported("graph node type " + std::to_string(p.type)));
  }
}

bool describe(const GraphNode& node, CUDA_MEM_ALLOC_NODE_PARAMS& out) {
  const auto* const work = std::get_if<AllocateMemory>(&node.payload);
  if (work == nullptr) {
    return false;
  }
  out = {};
  out.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  out.poolProps.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = work->allocation->device};
  out.bytesize = work->allocation->bytes;
  out.dptr = work->allocation->address;
  return true;
}

bool describe(const GraphNode& node, CUdeviceptr& out) {
  const auto* const work = std::get_if<FreeMemory>(&node.payload);
  if (work != nullptr) {
    out = work->address;
  }
  return work != nullptr;
}

bool describe(GraphNode& node, CUDA_KERNEL_NODE_PARAMS_v2& out) {
  auto* const work = std::get_if<KernelWork>(&node.payload);
  if (work == nullptr) {
    return false;
  }
  node.parameter_pointers.clear();
  for (const ParameterInfo& parameter : work->function->info().parameters) {
    node.parameter_pointers.push_back(work->parameters.data() + parameter.offset_bytes);
  }
  out = {.func = work->function->handle,
         .gridDimX = work->grid.x,
         .gridDimY = work->grid.y,
         .gridDimZ = work->grid.z,
         .blockDimX = work->block.x,
         .blockDimY = work->block.y,
         .blockDimZ = work->block.z,
         .sharedMemBytes = work->dynamic_shared_bytes,
         .kernelParams = node.parameter_pointers.data(),
         .kern = work->kernel};
  return true;
}

bool describe(const GraphNode& node, CUDA_MEMCPY3D& out) {
  const auto* const work = std::get_if<CopyWork>(&node.payload);
  if (work == nullptr) {
    return false;
  }
  out = {};
  out.srcMemoryType = out.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  out.srcDevice = work->source;
  out.dstDevice = work->target;
  out.srcPitch = work->source_pitch;
  out.dstPitch = work->target_pitch;
  out.srcHeight = work->source_pitch == 0 ? 0 : work->source_slice / work->source_pitch;
  out.dstHeight = work->target_pitch == 0 ? 0 : work->target_slice / work->target_pitch;
  describe_array(work->source_array.get(), work->source, out.srcArray, out.srcMemoryType, out.srcXInBytes, out.srcY,
                 out.srcZ);
  describe_array(work->target_array.get(), work->target, out.dstArray, out.dstMemoryType, out.dstXInBytes, out.dstY,
                 out.dstZ);
  out.WidthInBytes = work->width_bytes;
  out.Height = work->height;
  out.Depth = work->depth;
  return true;
}

bool describe(const GraphNode& node, CUDA_MEMSET_NODE_PARAMS_v1& out) {
  const auto* const work = std::get_if<FillWork>(&node.payload);
  if (work == nullptr) {
    return false;
  }
  out = {.dst = work->target,
         .pitch = work->pitch,
         .value = work->value,
         .elementSize = work->element_bytes,
         .width = work->width,
         .height = work->height};
  return true;
}

bool describe(const GraphNode& node, CUDA_HOST_NODE_PARAMS& out) {
  const auto* const work = std::get_if<HostWork>(&node.payload);
  if (work == nullptr) {
    return false;
  }
  out = {.fn = work->function, .userData = work->user};
  return true;
}

CUgraphNodeType type_of(const NodePayload& payload) {
  constexpr CUgraphNodeType kTypes[] = {
      CU_GRAPH_NODE_TYPE_EMPTY,        CU_GRAPH_NODE_TYPE_MEMCPY,     CU_GRAPH_NODE_TYPE_MEMSET,
      CU_GRAPH_NODE_TYPE_KERNEL,       CU_GRAPH_NODE_TYPE_HOST,       CU_GRAPH_NODE_TYPE_GRAPH,
      CU_GRAPH_NODE_TYPE_EVENT_RECORD, CU_GRAPH_NODE_TYPE_WAIT_EVENT, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
      CU_GRAPH_NODE_TYPE_MEM_ALLOC,    CU_GRAPH_NODE_TYPE_MEM_FREE,   CU_GRAPH_NODE_TYPE_CONDITIONAL,
      CU_GRAPH_NODE_TYPE_CONDITIONAL};
  static_assert(std::size(kTypes) == std::variant_size_v<NodePayload>);
  return kTypes[payload.index()];
}

}  // namespace gpuwire::software_device
