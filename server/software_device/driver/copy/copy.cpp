// Copies, synchronous and in streams.
#include "server/software_device/driver/call/api.hpp"
#include "server/software_device/driver/copy/copy_request.hpp"
#include "server/software_device/driver/stream/stream_work.hpp"

using namespace gpuwire::software_device;

namespace {

// Up to this size, a copy from pageable memory is staged so that the call can return. A larger copy is waited for.
constexpr size_t kStagedBytesMax = 1 << 20;

uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

CUresult copy_now(const CopyRequest& request) {
  return with_stream(nullptr, [&](Context& context, Stream& stream) -> CUresult {
    const auto work = check_copy(request);
    if (!work) {
      return work.error();
    }
    if (work->empty()) {
      return CUDA_SUCCESS;
    }
    return enqueue_and_wait(context, stream, *work);
  });
}

CUresult copy_in_stream(const CopyRequest& request, CUstream handle) {
  return with_stream(handle, [&](Context& context, Stream& stream) -> CUresult {
    if (const CUresult forbidden = permit_work(stream); forbidden != CUDA_SUCCESS) {
      return forbidden;
    }
    auto work = check_copy(request);
    if (!work) {
      return work.error();
    }
    if (work->empty()) {
      return CUDA_SUCCESS;
    }
    if (!is_capturing(stream)) {
      const bool unsettled = from_pageable(*work);
      if (to_pageable(*work) || (unsettled && work->width_bytes * work->height * work->depth > kStagedBytesMax)) {
        return enqueue_and_wait(context, stream, *work);
      }
      if (unsettled || (may_be_read_in_call(*work) && context.has_no_own_work(stream))) {
        stage_source(*work);
      }
    }
    return enqueue(context, stream, *std::move(work));
  });
}

CopyRequest host_to_device(CUdeviceptr target, const void* source, size_t bytes) {
  return linear_request(CU_MEMORYTYPE_DEVICE, target, CU_MEMORYTYPE_HOST, address_of(source), bytes);
}

CopyRequest device_to_host(void* target, CUdeviceptr source, size_t bytes) {
  return linear_request(CU_MEMORYTYPE_HOST, address_of(target), CU_MEMORYTYPE_DEVICE, source, bytes);
}

CopyRequest device_to_device(CUdeviceptr target, CUdeviceptr source, size_t bytes) {
  return linear_request(CU_MEMORYTYPE_DEVICE, target, CU_MEMORYTYPE_DEVICE, source, bytes);
}

CopyRequest anywhere(CUdeviceptr target, CUdeviceptr source, size_t bytes) {
  return linear_request(CU_MEMORYTYPE_UNIFIED, target, CU_MEMORYTYPE_UNIFIED, source, bytes);
}

bool known_context(CUcontext handle) { return handle == nullptr || driver().contexts.find(handle) != nullptr; }

}  // namespace

CUresult cuMemcpy(CUdeviceptr target, CUdeviceptr source, size_t bytes) {
  return copy_now(anywhere(target, source, bytes));
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr target, const void* source, size_t bytes) {
  return copy_now(host_to_device(target, source, bytes));
}
CUresult cuMemcpyDtoH_v2(void* target, CUdeviceptr source, size_t bytes) {
  return copy_now(device_to_host(target, source, bytes));
}
CUresult cuMemcpyDtoD_v2(CUdeviceptr target, CUdeviceptr source, size_t bytes) {
  return copy_now(device_to_device(target, source, bytes));
}

CUresult cuMemcpyAsync(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream) {
  return copy_in_stream(anywhere(target, source, bytes), stream);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void* source, size_t bytes, CUstream stream) {
  return copy_in_stream(host_to_device(target, source, bytes), stream);
}
CUresult cuMemcpyDtoHAsync_v2(void* target, CUdeviceptr source, size_t bytes, CUstream stream) {
  return copy_in_stream(device_to_host(target, source, bytes), stream);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream) {
  return copy_in_stream(device_to_device(target, source, bytes), stream);
}

CUresult cuMemcpyPeer(CUdeviceptr target, CUcontext target_context, CUdeviceptr source, CUcontext source_context,
                      size_t bytes) {
  return with_driver([&] {
    return known_context(target_context) && known_context(source_context)
               ? copy_now(device_to_device(target, source, bytes))
               : CUDA_ERROR_INVALID_CONTEXT;
  });
}

CUresult cuMemcpyPeerAsync(CUdeviceptr target, CUcontext target_context, CUdeviceptr source, CUcontext source_context,
                           size_t bytes, CUstream stream) {
  return with_driver([&] {
    return known_context(target_context) && known_context(source_context)
               ? copy_in_stream(device_to_device(target, source, bytes), stream)
               : CUDA_ERROR_INVALID_CONTEXT;
  });
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* copy) {
  return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : copy_now(request_of(*copy));
}
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* copy) { return cuMemcpy2D_v2(copy); }
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* copy) {
  return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : copy_now(request_of(*copy));
}
CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* copy) {
  return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : copy_now(request_of(*copy));
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, CUstream stream) {
  return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : copy_in_stream(request_of(*copy), stream);
}
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* copy, CUstream stream) {
  return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : copy_in_stream(request_of(*copy), stream);
}
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* copy, CUstream stream) {
  return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : copy_in_stream(request_of(*copy), stream);
}

// --- between memory and one-dimensional arrays

namespace {

CopyEnd memory_end(CUmemorytype type, uint64_t address) { return {.type = type, .address = address}; }

CopyRequest row_request(const CopyEnd& target, const CopyEnd& source, size_t bytes) {
  return {.target = target, .source = source, .width_bytes = bytes};
}

}  // namespace

CUresult cuMemcpyHtoA_v2(CUarray target, size_t offset, const void* source, size_t bytes) {
  return copy_now(row_request(array_end(target, offset), memory_end(CU_MEMORYTYPE_HOST, address_of(source)), bytes));
}
CUresult cuMemcpyAtoH_v2(void* target, CUarray source, size_t offset, size_t bytes) {
  return copy_now(row_request(memory_end(CU_MEMORYTYPE_HOST, address_of(target)), array_end(source, offset), bytes));
}
CUresult cuMemcpyDtoA_v2(CUarray target, size_t offset, CUdeviceptr source, size_t bytes) {
  return copy_now(row_request(array_end(target, offset), memory_end(CU_MEMORYTYPE_DEVICE, source), bytes));
}
CUresult cuMemcpyAtoD_v2(CUdeviceptr target, CUarray source, size_t offset, size_t bytes) {
  return copy_now(row_request(memory_end(CU_MEMORYTYPE_DEVICE, target), array_end(source, offset), bytes));
}
CUresult cuMemcpyAtoA_v2(CUarray target, size_t target_offset, CUarray source, size_t source_offset, size_t bytes) {
  return copy_now(row_request(array_end(target, target_offset), array_end(source, source_offset), bytes));
}
CUresult cuMemcpyHtoAAsync_v2(CUarray target, size_t offset, const void* source, size_t bytes, CUstream stream) {
  return copy_in_stream(
      row_request(array_end(target, offset), memory_end(CU_MEMORYTYPE_HOST, address_of(source)), bytes), stream);
}
CUresult cuMemcpyAtoHAsync_v2(void* target, CUarray source, size_t offset, size_t bytes, CUstream stream) {
  return copy_in_stream(
      row_request(memory_end(CU_MEMORYTYPE_HOST, address_of(target)), array_end(source, offset), bytes), stream);
}
