// Checks the copies that programs ask for, and reduces the many ways of asking to one.
#pragma once

#include <cuda.h>
#include <tl/expected.hpp>

#include "server/software_device/driver/stream/stream_work.hpp"

namespace gpuwire::software_device {

// One end of a copy. Unified: whatever the address says.
struct CopyEnd {
  CUmemorytype type = CU_MEMORYTYPE_UNIFIED;
  uint64_t address = 0;
  size_t x_bytes = 0, y = 0, z = 0;
  size_t pitch = 0;   // bytes; 0: rows follow each other
  size_t height = 0;  // rows to a slice; 0: slices follow each other
  CUarray array = nullptr;
};

struct CopyRequest {
  CopyEnd target, source;
  size_t width_bytes = 0, height = 1, depth = 1;
};

CopyRequest request_of(const CUDA_MEMCPY2D& parameters);
CopyRequest request_of(const CUDA_MEMCPY3D& parameters);
CopyRequest request_of(const CUDA_MEMCPY3D_PEER& parameters);
// A row of a one-dimensional array on one end, and memory on the other.
CopyEnd array_end(CUarray array, size_t offset_bytes);
CopyRequest linear_request(CUmemorytype target_type, uint64_t target, CUmemorytype source_type, uint64_t source,
                           size_t bytes);

// CUDA_ERROR_INVALID_VALUE when the geometry is impossible or device memory is not where the request says;
// CUDA_ERROR_INVALID_HANDLE for no array.
tl::expected<CopyWork, CUresult> check_copy(const CopyRequest& request);

// Whether a fill that is not empty keeps to the device's memory and is aligned: else CUDA_ERROR_INVALID_VALUE.
CUresult check_fill(const FillWork& work);

// Whether the memory is the program's own, neither allocated nor registered: an asynchronous copy may not use it after
// the call returns.
bool pageable(uint64_t address);

// Whether an end of the copy is pageable memory.
bool from_pageable(const CopyWork& work);
bool to_pageable(const CopyWork& work);

// Replaces the source by a copy of it.
void stage_source(CopyWork& work);

}  // namespace gpuwire::software_device
