#include "structures.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <type_traits>

namespace differential {
namespace {

template <class Member>
constexpr Field field_of(std::string_view name, size_t offset) {
  using Type = std::remove_reference_t<Member>;
  return {name, offset, sizeof(Type), std::is_same_v<Type, size_t>};
}

#define FIELD(type, path) field_of<decltype(static_cast<type*>(nullptr)->path)>(#path, offsetof(type, path))

using Copy2D = CUDA_MEMCPY2D;
constexpr Field kCopy2D[] = {
    FIELD(Copy2D, srcXInBytes), FIELD(Copy2D, srcY),     FIELD(Copy2D, srcMemoryType), FIELD(Copy2D, srcHost),
    FIELD(Copy2D, srcDevice),   FIELD(Copy2D, srcArray), FIELD(Copy2D, srcPitch),      FIELD(Copy2D, dstXInBytes),
    FIELD(Copy2D, dstY),        FIELD(Copy2D, dstHost),  FIELD(Copy2D, dstMemoryType), FIELD(Copy2D, dstDevice),
    FIELD(Copy2D, dstArray),    FIELD(Copy2D, dstPitch), FIELD(Copy2D, WidthInBytes),  FIELD(Copy2D, Height),
};
using Copy3D = CUDA_MEMCPY3D;
constexpr Field kCopy3D[] = {
    FIELD(Copy3D, srcXInBytes), FIELD(Copy3D, srcY),          FIELD(Copy3D, srcZ),         FIELD(Copy3D, srcMemoryType),
    FIELD(Copy3D, srcHost),     FIELD(Copy3D, srcDevice),     FIELD(Copy3D, srcArray),     FIELD(Copy3D, srcPitch),
    FIELD(Copy3D, srcHeight),   FIELD(Copy3D, dstXInBytes),   FIELD(Copy3D, dstY),         FIELD(Copy3D, dstZ),
    FIELD(Copy3D, dstHost),     FIELD(Copy3D, dstMemoryType), FIELD(Copy3D, dstDevice),    FIELD(Copy3D, dstArray),
    FIELD(Copy3D, dstPitch),    FIELD(Copy3D, dstHeight),     FIELD(Copy3D, WidthInBytes), FIELD(Copy3D, Height),
    FIELD(Copy3D, Depth),
};
constexpr Field kLocation[] = {FIELD(CUmemLocation, type), FIELD(CUmemLocation, id)};
constexpr Field kAllocationProp[] = {FIELD(CUmemAllocationProp, type), FIELD(CUmemAllocationProp, requestedHandleTypes),
                                     FIELD(CUmemAllocationProp, location.type),
                                     FIELD(CUmemAllocationProp, location.id)};
constexpr Field kAccessDesc[] = {FIELD(CUmemAccessDesc, location.type), FIELD(CUmemAccessDesc, location.id),
                                 FIELD(CUmemAccessDesc, flags)};
constexpr Field kIpcMemory[] = {FIELD(CUipcMemHandle, reserved[0])};
constexpr Field kIpcEvent[] = {FIELD(CUipcEventHandle, reserved[0])};
constexpr Field kPoolProps[] = {FIELD(CUmemPoolProps, allocType), FIELD(CUmemPoolProps, handleTypes),
                                FIELD(CUmemPoolProps, location.type), FIELD(CUmemPoolProps, location.id),
                                FIELD(CUmemPoolProps, maxSize)};
constexpr Field kArray[] = {FIELD(CUDA_ARRAY_DESCRIPTOR, Width), FIELD(CUDA_ARRAY_DESCRIPTOR, Height),
                            FIELD(CUDA_ARRAY_DESCRIPTOR, Format), FIELD(CUDA_ARRAY_DESCRIPTOR, NumChannels)};
using Array3D = CUDA_ARRAY3D_DESCRIPTOR;
constexpr Field kArray3D[] = {FIELD(Array3D, Width),  FIELD(Array3D, Height),      FIELD(Array3D, Depth),
                              FIELD(Array3D, Format), FIELD(Array3D, NumChannels), FIELD(Array3D, Flags)};
constexpr Field kResource[] = {FIELD(CUDA_RESOURCE_DESC, resType),
                               FIELD(CUDA_RESOURCE_DESC, res.array.hArray),
                               FIELD(CUDA_RESOURCE_DESC, res.linear.devPtr),
                               FIELD(CUDA_RESOURCE_DESC, res.linear.format),
                               FIELD(CUDA_RESOURCE_DESC, res.linear.numChannels),
                               FIELD(CUDA_RESOURCE_DESC, res.linear.sizeInBytes),
                               FIELD(CUDA_RESOURCE_DESC, flags)};
constexpr Field kTexture[] = {FIELD(CUDA_TEXTURE_DESC, addressMode[0]), FIELD(CUDA_TEXTURE_DESC, addressMode[1]),
                              FIELD(CUDA_TEXTURE_DESC, addressMode[2]), FIELD(CUDA_TEXTURE_DESC, filterMode),
                              FIELD(CUDA_TEXTURE_DESC, flags)};
using Kernel = CUDA_KERNEL_NODE_PARAMS;
constexpr Field kKernel[] = {FIELD(Kernel, func),      FIELD(Kernel, gridDimX),       FIELD(Kernel, gridDimY),
                             FIELD(Kernel, gridDimZ),  FIELD(Kernel, blockDimX),      FIELD(Kernel, blockDimY),
                             FIELD(Kernel, blockDimZ), FIELD(Kernel, sharedMemBytes), FIELD(Kernel, kernelParams),
                             FIELD(Kernel, ctx)};
using Fill = CUDA_MEMSET_NODE_PARAMS;
constexpr Field kFill[] = {FIELD(Fill, dst),         FIELD(Fill, pitch), FIELD(Fill, value),
                           FIELD(Fill, elementSize), FIELD(Fill, width), FIELD(Fill, height)};
constexpr Field kHost[] = {FIELD(CUDA_HOST_NODE_PARAMS, fn), FIELD(CUDA_HOST_NODE_PARAMS, userData)};
using Allocation = CUDA_MEM_ALLOC_NODE_PARAMS;
constexpr Field kAllocation[] = {FIELD(Allocation, poolProps.allocType),
                                 FIELD(Allocation, poolProps.handleTypes),
                                 FIELD(Allocation, poolProps.location.type),
                                 FIELD(Allocation, poolProps.location.id),
                                 FIELD(Allocation, bytesize),
                                 FIELD(Allocation, dptr)};
using Node = CUgraphNodeParams;
constexpr Field kNode[] = {FIELD(Node, type),
                           FIELD(Node, memset.dst),
                           FIELD(Node, memset.value),
                           FIELD(Node, memset.elementSize),
                           FIELD(Node, memset.width),
                           FIELD(Node, memset.height),
                           FIELD(Node, host.fn),
                           FIELD(Node, host.userData),
                           FIELD(Node, graph.graph),
                           FIELD(Node, eventRecord.event),
                           FIELD(Node, eventWait.event),
                           FIELD(Node, free.dptr),
                           FIELD(Node, conditional.handle),
                           FIELD(Node, conditional.type),
                           FIELD(Node, conditional.size),
                           FIELD(Node, conditional.ctx)};
constexpr Field kLaunch[] = {FIELD(CUlaunchConfig, gridDimX),       FIELD(CUlaunchConfig, gridDimY),
                             FIELD(CUlaunchConfig, gridDimZ),       FIELD(CUlaunchConfig, blockDimX),
                             FIELD(CUlaunchConfig, blockDimY),      FIELD(CUlaunchConfig, blockDimZ),
                             FIELD(CUlaunchConfig, sharedMemBytes), FIELD(CUlaunchConfig, hStream),
                             FIELD(CUlaunchConfig, attrs),          FIELD(CUlaunchConfig, numAttrs)};
constexpr Field kAttribute[] = {FIELD(CUlaunchAttribute, id),
                                FIELD(CUlaunchAttribute, value.cooperative),
                                FIELD(CUlaunchAttribute, value.priority),
                                FIELD(CUlaunchAttribute, value.clusterDim.x),
                                FIELD(CUlaunchAttribute, value.clusterDim.y),
                                FIELD(CUlaunchAttribute, value.clusterDim.z)};
constexpr Field kContext[] = {FIELD(CUctxCreateParams, numExecAffinityParams)};
constexpr Field kPointer[] = {FIELD(cudaPointerAttributes, type), FIELD(cudaPointerAttributes, device),
                              FIELD(cudaPointerAttributes, devicePointer), FIELD(cudaPointerAttributes, hostPointer)};
constexpr Field kProperties[] = {FIELD(CUdevprop, maxThreadsPerBlock), FIELD(CUdevprop, sharedMemPerBlock),
                                 FIELD(CUdevprop, SIMDWidth), FIELD(CUdevprop, regsPerBlock)};
constexpr Field kAffinity[] = {FIELD(CUexecAffinityParam, type)};
constexpr Field kValue[] = {FIELD(CUlaunchAttributeValue, syncPolicy), FIELD(CUlaunchAttributeValue, priority),
                            FIELD(CUlaunchAttributeValue, cooperative), FIELD(CUlaunchAttributeValue, memSyncDomain)};
using Operation = CUstreamBatchMemOpParams;
constexpr Field kOperation[] = {FIELD(Operation, operation),          FIELD(Operation, writeValue.address),
                                FIELD(Operation, writeValue.value64), FIELD(Operation, writeValue.flags),
                                FIELD(Operation, waitValue.address),  FIELD(Operation, waitValue.value64),
                                FIELD(Operation, waitValue.flags)};
using Operations = CUDA_BATCH_MEM_OP_NODE_PARAMS;
constexpr Field kOperations[] = {FIELD(Operations, ctx), FIELD(Operations, count), FIELD(Operations, paramArray),
                                 FIELD(Operations, flags)};
using Peer = CUDA_MEMCPY3D_PEER;
constexpr Field kPeer[] = {FIELD(Peer, srcMemoryType), FIELD(Peer, srcDevice),    FIELD(Peer, srcContext),
                           FIELD(Peer, srcPitch),      FIELD(Peer, srcHeight),    FIELD(Peer, dstMemoryType),
                           FIELD(Peer, dstDevice),     FIELD(Peer, dstContext),   FIELD(Peer, dstPitch),
                           FIELD(Peer, dstHeight),     FIELD(Peer, WidthInBytes), FIELD(Peer, Height),
                           FIELD(Peer, Depth)};
constexpr Field kOrder[] = {FIELD(CUmemcpyAttributes, srcAccessOrder), FIELD(CUmemcpyAttributes, flags)};
using Batch = CUDA_MEMCPY3D_BATCH_OP;
constexpr Field kBatch[] = {FIELD(Batch, src.type),       FIELD(Batch, src.op.ptr.ptr), FIELD(Batch, dst.type),
                            FIELD(Batch, dst.op.ptr.ptr), FIELD(Batch, extent.width),   FIELD(Batch, extent.height),
                            FIELD(Batch, extent.depth),   FIELD(Batch, srcAccessOrder), FIELD(Batch, flags)};
constexpr Field kNeeds[] = {FIELD(CUDA_ARRAY_MEMORY_REQUIREMENTS, size),
                            FIELD(CUDA_ARRAY_MEMORY_REQUIREMENTS, alignment)};
constexpr Field kSparse[] = {FIELD(CUDA_ARRAY_SPARSE_PROPERTIES, flags)};
constexpr Field kView[] = {FIELD(CUDA_RESOURCE_VIEW_DESC, format), FIELD(CUDA_RESOURCE_VIEW_DESC, width)};
constexpr Field kInstantiate[] = {FIELD(CUDA_GRAPH_INSTANTIATE_PARAMS, flags),
                                  FIELD(CUDA_GRAPH_INSTANTIATE_PARAMS, hUploadStream),
                                  FIELD(CUDA_GRAPH_INSTANTIATE_PARAMS, result_out)};
constexpr Field kUpdate[] = {FIELD(CUgraphExecUpdateResultInfo, result)};

struct Row {
  std::string_view name;
  Structure structure;
};

#define ROW(type, fields)                                           \
  {                                                                 \
#type, { sizeof(type), fields, sizeof fields / sizeof *fields } \
  }
constexpr Row kRows[] = {
    ROW(CUDA_MEMCPY2D, kCopy2D),
    ROW(CUDA_MEMCPY3D, kCopy3D),
    ROW(CUmemLocation, kLocation),
    ROW(CUmemAllocationProp, kAllocationProp),
    ROW(CUmemAccessDesc, kAccessDesc),
    ROW(CUipcMemHandle, kIpcMemory),
    ROW(CUipcEventHandle, kIpcEvent),
    ROW(CUmemPoolProps, kPoolProps),
    ROW(CUDA_ARRAY_DESCRIPTOR, kArray),
    ROW(CUDA_ARRAY3D_DESCRIPTOR, kArray3D),
    ROW(CUDA_RESOURCE_DESC, kResource),
    ROW(CUDA_TEXTURE_DESC, kTexture),
    ROW(CUDA_KERNEL_NODE_PARAMS, kKernel),
    ROW(CUDA_MEMSET_NODE_PARAMS, kFill),
    ROW(CUDA_HOST_NODE_PARAMS, kHost),
    ROW(CUDA_MEM_ALLOC_NODE_PARAMS, kAllocation),
    ROW(CUgraphNodeParams, kNode),
    ROW(CUlaunchConfig, kLaunch),
    ROW(CUlaunchAttribute, kAttribute),
    ROW(CUctxCreateParams, kContext),
    ROW(cudaPointerAttributes, kPointer),
    ROW(CUdevprop, kProperties),
    ROW(CUexecAffinityParam, kAffinity),
    ROW(CUlaunchAttributeValue, kValue),
    ROW(CUstreamBatchMemOpParams, kOperation),
    ROW(CUDA_BATCH_MEM_OP_NODE_PARAMS, kOperations),
    ROW(CUDA_MEMCPY3D_PEER, kPeer),
    ROW(CUmemcpyAttributes, kOrder),
    ROW(CUDA_MEMCPY3D_BATCH_OP, kBatch),
    ROW(CUDA_ARRAY_MEMORY_REQUIREMENTS, kNeeds),
    ROW(CUDA_ARRAY_SPARSE_PROPERTIES, kSparse),
    ROW(CUDA_RESOURCE_VIEW_DESC, kView),
    ROW(CUDA_GRAPH_INSTANTIATE_PARAMS, kInstantiate),
    ROW(CUgraphExecUpdateResultInfo, kUpdate),
};

}  // namespace

const Field* Structure::find(std::string_view name) const {
  for (size_t i = 0; i < count; ++i) {
    if (fields[i].name == name) return &fields[i];
  }
  return nullptr;
}

const Structure* find_structure(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) return &row.structure;
  }
  return nullptr;
}

}  // namespace differential
