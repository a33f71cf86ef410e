#include "server/software_device/driver/copy/copy_request.hpp"

#include <cstring>
#include <vector>

#include "server/software_device/driver/call/driver_state.hpp"

namespace gpuwire::software_device {
namespace {

uint64_t end_address(CUmemorytype type, const void* host, CUdeviceptr device) {
  return type == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(host) : device;
}

template <typename Parameters>
CopyRequest three_dimensional(const Parameters& p) {
  return {.target = {p.dstMemoryType, end_address(p.dstMemoryType, p.dstHost, p.dstDevice), p.dstXInBytes, p.dstY,
                     p.dstZ, p.dstPitch, p.dstHeight, p.dstArray},
          .source = {p.srcMemoryType, end_address(p.srcMemoryType, p.srcHost, p.srcDevice), p.srcXInBytes, p.srcY,
                     p.srcZ, p.srcPitch, p.srcHeight, p.srcArray},
          .width_bytes = p.WidthInBytes,
          .height = p.Height,
          .depth = p.Depth};
}

struct PlacedEnd {
  uint64_t address = 0;
  size_t pitch = 0, slice = 0;
  std::shared_ptr<const ArrayObject> array;
};

tl::expected<PlacedEnd, CUresult> place_in_array(const CopyEnd& end, const CopyRequest& request) {
  const auto array = driver().arrays.find(end.array);
  if (array == nullptr) {
    // NULL is an invalid value (measured on driver 580).
    return tl::unexpected(end.array == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE);
  }
  const ImageLevel& level = array->level;
  const uint32_t texel_bytes = array->format.bytes();
  const auto fits = [](size_t at, size_t count, size_t extent) { return at <= extent && count <= extent - at; };
  if (end.x_bytes % texel_bytes != 0 || request.width_bytes % texel_bytes != 0 ||
      !fits(end.x_bytes, request.width_bytes, level.row_bytes) || !fits(end.y, request.height, level.height) ||
      !fits(end.z, request.depth, level.depth)) {
    return tl::unexpected(CUDA_ERROR_INVALID_VALUE);
  }
  const uint64_t begin =
      reinterpret_cast<uint64_t>(level.base) + end.z * level.slice_bytes + end.y * level.row_bytes + end.x_bytes;
  return PlacedEnd{begin, level.row_bytes, level.slice_bytes, array};
}

// Returns where an end of a non-empty copy begins, after a check that its memory contains all of it.
tl::expected<PlacedEnd, CUresult> place(const CopyEnd& end, const CopyRequest& request) {
  if (end.type == CU_MEMORYTYPE_ARRAY) {
    return place_in_array(end, request);
  }
  if (end.type != CU_MEMORYTYPE_HOST && end.type != CU_MEMORYTYPE_DEVICE && end.type != CU_MEMORYTYPE_UNIFIED) {
    return tl::unexpected(CUDA_ERROR_INVALID_VALUE);
  }
  const size_t pitch = end.pitch == 0 ? end.x_bytes + request.width_bytes : end.pitch;
  const size_t height = end.height == 0 ? end.y + request.height : end.height;
  if (end.address == 0 || end.x_bytes > pitch || request.width_bytes > pitch - end.x_bytes ||
      (request.depth > 1 && (end.y > height || request.height > height - end.y))) {
    return tl::unexpected(CUDA_ERROR_INVALID_VALUE);
  }
  using Wide = unsigned __int128;
  const Wide slice = static_cast<Wide>(pitch) * height;
  const Wide offset = slice * end.z + static_cast<Wide>(pitch) * end.y + end.x_bytes;
  const Wide extent =
      slice * (request.depth - 1) + static_cast<Wide>(pitch) * (request.height - 1) + request.width_bytes;
  if (slice > SIZE_MAX || end.address + offset + extent > UINT64_MAX) {
    return tl::unexpected(CUDA_ERROR_INVALID_VALUE);
  }
  const uint64_t begin = end.address + static_cast<uint64_t>(offset);
  const bool known = end.type == CU_MEMORYTYPE_DEVICE || !pageable(begin);
  if (known && !driver().memory.covers(begin, static_cast<uint64_t>(extent)) && end.type != CU_MEMORYTYPE_HOST) {
    return tl::unexpected(CUDA_ERROR_INVALID_VALUE);
  }
  return PlacedEnd{begin, pitch, static_cast<size_t>(slice), nullptr};
}

}  // namespace

CopyRequest request_of(const CUDA_MEMCPY2D& p) {
  return {.target = {p.dstMemoryType, end_address(p.dstMemoryType, p.dstHost, p.dstDevice), p.dstXInBytes, p.dstY, 0,
                     p.dstPitch, 0, p.dstArray},
          .source = {p.srcMemoryType, end_address(p.srcMemoryType, p.srcHost, p.srcDevice), p.srcXInBytes, p.srcY, 0,
                     p.srcPitch, 0, p.srcArray},
          .width_bytes = p.WidthInBytes,
          .height = p.Height};
}

CopyRequest request_of(const CUDA_MEMCPY3D& p) { return three_dimensional(p); }
CopyRequest request_of(const CUDA_MEMCPY3D_PEER& p) { return three_dimensional(p); }

CopyEnd array_end(CUarray array, size_t offset_bytes) {
  return {.type = CU_MEMORYTYPE_ARRAY, .x_bytes = offset_bytes, .array = array};
}

CopyRequest linear_request(CUmemorytype target_type, uint64_t target, CUmemorytype source_type, uint64_t source,
                           size_t bytes) {
  return {.target = {.type = target_type, .address = target},
          .source = {.type = source_type, .address = source},
          .width_bytes = bytes};
}

tl::expected<CopyWork, CUresult> check_copy(const CopyRequest& request) {
  CopyWork work{.width_bytes = request.width_bytes, .height = request.height, .depth = request.depth};
  if (work.empty()) {
    return work;
  }
  const auto target = place(request.target, request);
  if (!target) {
    return tl::unexpected(target.error());
  }
  const auto source = place(request.source, request);
  if (!source) {
    return tl::unexpected(source.error());
  }
  work.target = target->address;
  work.target_pitch = target->pitch;
  work.target_slice = target->slice;
  work.source = source->address;
  work.source_pitch = source->pitch;
  work.source_slice = source->slice;
  work.target_array = target->array;
  work.source_array = source->array;
  return work;
}

CUresult check_fill(const FillWork& work) {
  const auto rows = static_cast<unsigned __int128>(work.pitch) * (work.height - 1);
  const auto row_bytes = static_cast<unsigned __int128>(work.width) * work.element_bytes;
  const bool aligned =
      work.target % work.element_bytes == 0 && (work.height == 1 || work.pitch % work.element_bytes == 0);
  const bool fits = work.height == 1 || row_bytes <= work.pitch;
  if (!aligned || !fits || rows + row_bytes > UINT64_MAX ||
      !driver().memory.covers(work.target, static_cast<uint64_t>(rows + row_bytes))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

bool pageable(uint64_t address) {
  return !driver().memory.inspect(address, [](const MemoryRange&) {});
}

bool from_pageable(const CopyWork& work) { return work.source_array == nullptr && pageable(work.source); }
bool to_pageable(const CopyWork& work) { return work.target_array == nullptr && pageable(work.target); }

bool may_be_read_in_call(const CopyWork& work) {
  constexpr size_t kReadInCallBytesMax = 16 << 10;
  if (work.source_array != nullptr || work.target_array != nullptr || work.height * work.depth != 1 ||
      work.width_bytes > kReadInCallBytesMax) {
    return false;
  }
  bool from_locked = false;
  bool to_device = false;
  driver().memory.inspect(work.source, [&](const MemoryRange& range) {
    from_locked = range.kind == MemoryKind::pinned || range.kind == MemoryKind::registered;
  });
  driver().memory.inspect(work.target, [&](const MemoryRange& range) { to_device = range.kind == MemoryKind::device; });
  return from_locked && to_device;
}

void stage_source(CopyWork& work) {
  auto staged = std::make_shared<std::vector<uint8_t>>(work.width_bytes * work.height * work.depth);
  uint8_t* next = staged->data();
  for (size_t slice = 0; slice < work.depth; ++slice) {
    for (size_t row = 0; row < work.height; ++row, next += work.width_bytes) {
      std::memcpy(next,
                  reinterpret_cast<const uint8_t*>(work.source) + slice * work.source_slice + row * work.source_pitch,
                  work.width_bytes);
    }
  }
  work.source = reinterpret_cast<uint64_t>(staged->data());
  work.source_pitch = work.width_bytes;
  work.source_slice = work.width_bytes * work.height;
  work.staged = std::move(staged);
}

}  // namespace gpuwire::software_device
