#include "client_stub/driver/state/array/array_shapes.hpp"

#include <algorithm>

#include "client/forward.hpp"
#include "client_stub/driver/state/session/server_session.hpp"

namespace gpuwire::client {
namespace {

// Bytes of one channel; 0: a format whose elements are no single values.
size_t channel_bytes(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
    case CU_AD_FORMAT_UNORM_INT8X1:
    case CU_AD_FORMAT_UNORM_INT8X2:
    case CU_AD_FORMAT_UNORM_INT8X4:
    case CU_AD_FORMAT_SNORM_INT8X1:
    case CU_AD_FORMAT_SNORM_INT8X2:
    case CU_AD_FORMAT_SNORM_INT8X4: return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
    case CU_AD_FORMAT_UNORM_INT16X1:
    case CU_AD_FORMAT_UNORM_INT16X2:
    case CU_AD_FORMAT_UNORM_INT16X4:
    case CU_AD_FORMAT_SNORM_INT16X1:
    case CU_AD_FORMAT_SNORM_INT16X2:
    case CU_AD_FORMAT_SNORM_INT16X4: return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return 4;
    default: return 0;
  }
}

bool fits(size_t at, size_t count, size_t extent) noexcept { return at <= extent && count <= extent - at; }

}  // namespace

bool ArrayShape::holds(size_t x_bytes, size_t y, size_t z, size_t width_bytes, size_t rows,
                       size_t slices) const noexcept {
  return x_bytes % element_bytes == 0 && width_bytes % element_bytes == 0 &&
         fits(x_bytes, width_bytes, width * element_bytes) && fits(y, rows, height) && fits(z, slices, depth);
}

CUresult ArrayShapes::find(const Caller& caller, CUarray array, ArrayShape& shape) {
  {
    MutexLock lock(mutex_);
    if (auto found = shapes_.find(array); found != shapes_.end()) {
      shape = found->second;
      return CUDA_SUCCESS;
    }
  }
  CUDA_ARRAY3D_DESCRIPTOR told{};
  if (CUresult error = forward::cuArray3DGetDescriptor_v2(caller, &told, array)) return error;
  shape = {.width = told.Width,
           .height = std::max<size_t>(told.Height, 1),
           .depth = std::max<size_t>(told.Depth, 1),
           .element_bytes = channel_bytes(told.Format) * told.NumChannels};
  MutexLock lock(mutex_);
  if (shapes_.size() >= kKeptMax) shapes_.clear();
  shapes_.emplace(array, shape);
  return CUDA_SUCCESS;
}

CUresult check_in_array(const Caller& caller, CUarray array, size_t x_bytes, size_t y, size_t z, size_t width_bytes,
                        size_t rows, size_t slices) {
  ArrayShape shape;
  if (CUresult error = caller.server->array_shapes.find(caller, array, shape)) return error;
  if (!shape.element_bytes || shape.holds(x_bytes, y, z, width_bytes, rows, slices)) return CUDA_SUCCESS;
  return CUDA_ERROR_INVALID_VALUE;
}

}  // namespace gpuwire::client
