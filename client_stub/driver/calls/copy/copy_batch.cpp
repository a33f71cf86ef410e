// Batches of copies. The copies are performed one after the other: a batch has its place in the order of its stream,
// and its copies have no order among themselves.
#include <algorithm>
#include <cstdint>

#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/stream/stream_call.hpp"
#include "client_stub/driver/state/stream/stream_wait.hpp"
#include "client_stub/driver/state/array/array_shapes.hpp"
#include "client_stub/driver/state/copy/memory_in_flight.hpp"
#include "client_stub/driver/state/memory/place.hpp"

namespace gpuwire::client {
namespace {

// The index that the older forms store if no single copy has failed.
constexpr size_t kNoIndex = SIZE_MAX;

bool order_is_valid(CUmemcpySrcAccessOrder order) {
  return order == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM || order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL ||
         order == CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
}

bool flags_are_valid(unsigned flags) { return (flags & ~unsigned(CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE)) == 0; }

// "Must not be legacy NULL stream" (cuda.h, cuMemcpyBatchAsync).
bool is_null_stream(CUstream stream, bool per_thread) {
  return stream == CU_STREAM_LEGACY || (stream == nullptr && !per_thread);
}

CUresult check_attributes(const CUmemcpyAttributes* attributes, const size_t* first, size_t attribute_count,
                          size_t count) {
  if (!attributes || !first || attribute_count == 0 || attribute_count > count || first[0] != 0)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < attribute_count; ++i) {
    if (!order_is_valid(attributes[i].srcAccessOrder) || !flags_are_valid(attributes[i].flags))
      return CUDA_ERROR_INVALID_VALUE;
    if (i > 0 && (first[i] <= first[i - 1] || first[i] >= count)) return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

// Ensures that the source has been read if the program may change it as soon as the call returns. The server reads the
// source later in a copy by address from a host region or managed memory, and in a late copy.
CUresult settle_during_call(const Caller& caller, CUmemcpySrcAccessOrder order, CUdeviceptr source, size_t bytes,
                            CUstream stream, bool per_thread) {
  if (order != CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL) return CUDA_SUCCESS;
  if (!classify(source, bytes).on_both_sides() && !caller.server->in_flight.in_use(source, bytes)) return CUDA_SUCCESS;
  return synchronise_stream(stream, per_thread);
}

CUresult linear_batch(const Caller& caller, const CUdeviceptr* destinations, const CUdeviceptr* sources,
                      const size_t* sizes, size_t count, const CUmemcpyAttributes* attributes, const size_t* first,
                      size_t attribute_count, CUstream stream, bool per_thread, size_t& failed) {
  failed = kNoIndex;
  if (is_null_stream(stream, per_thread)) return CUDA_ERROR_INVALID_VALUE;
  if (!destinations || !sources || !sizes || count == 0) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = check_attributes(attributes, first, attribute_count, count)) return error;
  if (std::find(sizes, sizes + count, size_t(0)) != sizes + count) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0, at = 0; i < count; ++i) {
    if (at + 1 < attribute_count && first[at + 1] == i) ++at;
    CUresult error = custom::cuMemcpyAsync(destinations[i], sources[i], sizes[i], stream, per_thread);
    if (!error)
      error = settle_during_call(caller, attributes[at].srcAccessOrder, sources[i], sizes[i], stream, per_thread);
    if (error) {
      failed = i;
      return error;
    }
  }
  return CUDA_SUCCESS;
}

// --- boxes ---------------------------------------------------------------------------------------------------------

CUresult element_bytes(const Caller& caller, CUarray array, size_t& bytes) {
  ArrayShape shape;
  if (CUresult error = caller.server->array_shapes.find(caller, array, shape)) return error;
  bytes = shape.element_bytes;
  return bytes ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

bool is_array(const CUmemcpy3DOperand& operand) { return operand.type == CU_MEMCPY_OPERAND_TYPE_ARRAY; }

CUresult check_operand(const CUmemcpy3DOperand& operand, const CUextent3D& extent) {
  if (is_array(operand)) return CUDA_SUCCESS;
  if (operand.type != CU_MEMCPY_OPERAND_TYPE_POINTER) return CUDA_ERROR_INVALID_VALUE;
  const auto& pointer = operand.op.ptr;
  bool fits = (pointer.rowLength == 0 || pointer.rowLength >= extent.width) &&
              (pointer.layerHeight == 0 || pointer.layerHeight >= extent.height);
  return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult check_operation(const CUDA_MEMCPY3D_BATCH_OP& operation) {
  const CUextent3D& extent = operation.extent;
  if (extent.width == 0 || extent.height == 0 || extent.depth == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!order_is_valid(operation.srcAccessOrder) || !flags_are_valid(operation.flags)) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = check_operand(operation.src, extent)) return error;
  return check_operand(operation.dst, extent);
}

// Stores the unit of the operation's lengths: the bytes of an element of the array that takes part, or 1 without an
// array.
CUresult element_bytes(const Caller& caller, const CUDA_MEMCPY3D_BATCH_OP& operation, size_t& bytes) {
  bytes = 1;
  for (const CUmemcpy3DOperand* operand : {&operation.src, &operation.dst}) {
    if (!is_array(*operand)) continue;
    CUarray array = operand->op.array.array;
    if (!known_handle(wire::HandleKind::array, reinterpret_cast<uint64_t>(array))) return CUDA_ERROR_INVALID_HANDLE;
    if (CUresult error = element_bytes(caller, array, bytes)) return error;
  }
  return CUDA_SUCCESS;
}

CUresult copy_box(const Caller& caller, const CUDA_MEMCPY3D_BATCH_OP& operation, CUstream stream, bool per_thread) {
  size_t element = 1;
  if (CUresult error = element_bytes(caller, operation, element)) return error;
  const CUextent3D& extent = operation.extent;
  auto pitch = [&](const CUmemcpy3DOperand& operand) {
    return (operand.op.ptr.rowLength ? operand.op.ptr.rowLength : extent.width) * element;
  };
  auto height = [&](const CUmemcpy3DOperand& operand) {
    return operand.op.ptr.layerHeight ? operand.op.ptr.layerHeight : extent.height;
  };
  CUDA_MEMCPY3D copy{};
  copy.WidthInBytes = extent.width * element;
  copy.Height = extent.height;
  copy.Depth = extent.depth;
  const CUmemcpy3DOperand &from = operation.src, &to = operation.dst;
  if (is_array(from)) {
    copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.srcArray = from.op.array.array;
    copy.srcXInBytes = from.op.array.offset.x * element;
    copy.srcY = from.op.array.offset.y;
    copy.srcZ = from.op.array.offset.z;
  } else {
    copy.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
    copy.srcDevice = from.op.ptr.ptr;
    copy.srcPitch = pitch(from);
    copy.srcHeight = height(from);
  }
  if (is_array(to)) {
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = to.op.array.array;
    copy.dstXInBytes = to.op.array.offset.x * element;
    copy.dstY = to.op.array.offset.y;
    copy.dstZ = to.op.array.offset.z;
  } else {
    copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    copy.dstDevice = to.op.ptr.ptr;
    copy.dstPitch = pitch(to);
    copy.dstHeight = height(to);
  }
  return custom::cuMemcpy3DAsync_v2(&copy, stream, per_thread);
}

CUresult box_batch(const Caller& caller, size_t count, const CUDA_MEMCPY3D_BATCH_OP* operations,
                   unsigned long long flags, CUstream stream, bool per_thread, size_t& failed) {
  failed = kNoIndex;
  if (is_null_stream(stream, per_thread)) return CUDA_ERROR_INVALID_VALUE;
  if (!operations || count == 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    failed = i;
    if (CUresult error = check_operation(operations[i])) return error;
  }
  for (size_t i = 0; i < count; ++i) {
    failed = i;
    if (CUresult error = copy_box(caller, operations[i], stream, per_thread)) return error;
  }
  return CUDA_SUCCESS;
}

}  // namespace

namespace hand {

CUresult cuMemcpyBatchAsync_v2(const Caller& caller, CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                               CUmemcpyAttributes* attrs, size_t* attrsIdxs, size_t numAttrs, CUstream hStream,
                               bool per_thread) {
  size_t failed = 0;
  return linear_batch(caller, dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, hStream, per_thread, failed);
}

CUresult cuMemcpyBatchAsync(const Caller& caller, CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                            CUmemcpyAttributes* attrs, size_t* attrsIdxs, size_t numAttrs, size_t* failIdx,
                            CUstream hStream, bool per_thread) {
  size_t failed = 0;
  CUresult result =
      linear_batch(caller, dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, hStream, per_thread, failed);
  if (result && failIdx) *failIdx = failed;
  return result;
}

CUresult cuMemcpy3DBatchAsync_v2(const Caller& caller, size_t numOps, CUDA_MEMCPY3D_BATCH_OP* opList,
                                 unsigned long long flags, CUstream hStream, bool per_thread) {
  size_t failed = 0;
  return box_batch(caller, numOps, opList, flags, hStream, per_thread, failed);
}

CUresult cuMemcpy3DBatchAsync(const Caller& caller, size_t numOps, CUDA_MEMCPY3D_BATCH_OP* opList, size_t* failIdx,
                              unsigned long long flags, CUstream hStream, bool per_thread) {
  size_t failed = 0;
  CUresult result = box_batch(caller, numOps, opList, flags, hStream, per_thread, failed);
  if (result && failIdx) *failIdx = failed;
  return result;
}

}  // namespace hand
}  // namespace gpuwire::client
