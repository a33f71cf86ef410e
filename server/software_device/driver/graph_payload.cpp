#include "server/software_device/driver/graph_payload.hpp"

#include "server/software_device/driver/copy_request.hpp"
#include "server/software_device/driver/driver_state.hpp"
#include "server/software_device/driver/launch_request.hpp"
#include "server/software_device/driver/memory_operations.hpp"

namespace gpuwire::software_device {
namespace {

template <typename Parameters>
LaunchRequest request_of_kernel(const Parameters& p, CUfunction function) {
  return {.function = function, .grid = {p.gridDimX, p.gridDimY, p.gridDimZ}, .block = {p.blockDimX, p.blockDimY, p.blockDimZ},
          .dynamic_shared_bytes = p.sharedMemBytes, .parameters = p.kernelParams, .extra = p.extra};
}

PayloadOrError kernel_payload(Context& context, const LaunchRequest& request) {
  return check_launch(context, request).map([](KernelWork work) { return NodePayload(std::move(work)); });
}

// Says where in the array the address is, when there is an array.
void describe_array(const ArrayObject* array, uint64_t address, CUarray& handle, CUmemorytype& type, size_t& x_bytes, size_t& y, size_t& z) {
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

PayloadOrError payload_of(Context& context, const CUDA_KERNEL_NODE_PARAMS_v1& p) { return kernel_payload(context, request_of_kernel(p, p.func)); }

PayloadOrError payload_of(Context& context, const CUDA_KERNEL_NODE_PARAMS_v2& p) {
  return kernel_payload(context, request_of_kernel(p, p.func != nullptr ? p.func : reinterpret_cast<CUfunction>(p.kern)));
}

PayloadOrError payload_of(const CUDA_MEMCPY3D& p) {
  return check_copy(request_of(p)).map([](CopyWork work) { return NodePayload(std::move(work)); });
}

PayloadOrError payload_of(const CUDA_MEMSET_NODE_PARAMS_v1& p) {
  const FillWork work{.target = p.dst, .value = p.value, .element_bytes = p.elementSize, .width = p.width, .height = p.height, .pitch = p.pitch};
  if ((p.elementSize != 1 && p.elementSize != 2 && p.elementSize != 4) || p.width == 0 || p.height == 0 || check_fill(work) != CUDA_SUCCESS) {
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

PayloadOrError child_payload(CUgraph handle) {
  const auto graph = driver().graphs.find(handle);
  if (graph == nullptr) {
    return tl::unexpected(CUDA_ERROR_INVALID_VALUE);
  }
  auto clone = clone_graph(*graph);
  clone->child = true;
  return NodePayload(ChildGraph{std::move(clone)});
}

PayloadOrError memory_operations_payload(const CUstreamBatchMemOpParams* operations, unsigned count, unsigned flags) {
  return check_memory_operations(operations, count, flags).map([](MemoryOperationsWork work) { return NodePayload(std::move(work)); });
}

PayloadOrError payload_of(Context& context, const CUgraphNodeParams& p) {
  switch (p.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      const auto& kernel = p.kernel;
      return kernel_payload(context, request_of_kernel(kernel, kernel.func != nullptr ? kernel.func : reinterpret_cast<CUfunction>(kernel.kern)));
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: return payload_of(p.memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const auto& fill = p.memset;
      return payload_of(CUDA_MEMSET_NODE_PARAMS_v1{fill.dst, fill.pitch, fill.value, fill.elementSize, fill.width, fill.height});
    }
    case CU_GRAPH_NODE_TYPE_HOST: return payload_of(p.host.fn, p.host.userData);
    case CU_GRAPH_NODE_TYPE_GRAPH: return child_payload(p.graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY: return NodePayload(EmptyWork{});
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return memory_operations_payload(p.memOp.paramArray, p.memOp.count, p.memOp.flags);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return event_payload<WaitForEvent>(p.eventWait.event);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return event_payload<RecordEvent>(p.eventRecord.event);
    default: return tl::unexpected(CUDA_ERROR_NOT_SUPPORTED);
  }
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
  out = {.func = work->function->handle, .gridDimX = work->grid.x, .gridDimY = work->grid.y, .gridDimZ = work->grid.z, .blockDimX = work->block.x,
         .blockDimY = work->block.y, .blockDimZ = work->block.z, .sharedMemBytes = work->dynamic_shared_bytes, .kernelParams = node.parameter_pointers.data()};
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
  describe_array(work->source_array.get(), work->source, out.srcArray, out.srcMemoryType, out.srcXInBytes, out.srcY, out.srcZ);
  describe_array(work->target_array.get(), work->target, out.dstArray, out.dstMemoryType, out.dstXInBytes, out.dstY, out.dstZ);
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
  out = {.dst = work->target, .pitch = work->pitch, .value = work->value, .elementSize = work->element_bytes, .width = work->width, .height = work->height};
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
  constexpr CUgraphNodeType kTypes[] = {CU_GRAPH_NODE_TYPE_EMPTY, CU_GRAPH_NODE_TYPE_MEMCPY, CU_GRAPH_NODE_TYPE_MEMSET, CU_GRAPH_NODE_TYPE_KERNEL,
                                        CU_GRAPH_NODE_TYPE_HOST,  CU_GRAPH_NODE_TYPE_GRAPH,  CU_GRAPH_NODE_TYPE_EVENT_RECORD, CU_GRAPH_NODE_TYPE_WAIT_EVENT,
                                        CU_GRAPH_NODE_TYPE_BATCH_MEM_OP};
  static_assert(std::size(kTypes) == std::variant_size_v<NodePayload>);
  return kTypes[payload.index()];
}

}  // namespace gpuwire::software_device
