// Checks the copies that programs request, and converts the various forms to one.
#pragma once

#include <cuda.h>
#include <tl/expected.hpp>

#include "server/software_device/driver/stream/stream_work.hpp"

namespace gpuwire::software_device {

// One end of a copy. A unified end has the memory type of its address.
struct CopyEnd {
  CUmemorytype type = CU_MEMORYTYPE_UNIFIED;
  uint64_t address = 0;
  size_t x_bytes = 0, y = 0, z = 0;
  size_t pitch = 0;   // bytes; 0: rows are contiguous
  size_t height = 0;  // rows of a slice; 0: slices are contiguous
  CUarray array = nullptr;
};

struct CopyRequest {
  CopyEnd target, source;
  size_t width_bytes = 0, height = 1, depth = 1;
};

CopyRequest request_of(const CUDA_MEMCPY2D& parameters);
CopyRequest request_of(const CUDA_MEMCPY3D& parameters);
CopyRequest request_of(const CUDA_MEMCPY3D_PEER& parameters);
// Returns the end of a copy between a one-dimensional array and memory.
CopyEnd array_end(CUarray array, size_t offset_bytes);
CopyRequest linear_request(CUmemorytype target_type, uint64_t target, CUmemorytype source_type, uint64_t source,
                           size_t bytes);

// Returns CUDA_ERROR_INVALID_VALUE if the geometry is impossible or the request is outside of device memory, and
// CUDA_ERROR_INVALID_HANDLE if a handle is not an array.
tl::expected<CopyWork, CUresult> check_copy(const CopyRequest& request);

// Returns CUDA_ERROR_INVALID_VALUE unless a non-empty fill is aligned and inside the device's memory.
CUresult check_fill(const FillWork& work);

// Returns whether the memory is the program's own, neither allocated by the driver nor registered. An asynchronous copy
// may not use such memory after the call has returned.
bool pageable(uint64_t address);

// Returns whether an end of the copy is pageable memory.
bool from_pageable(const CopyWork& work);
bool to_pageable(const CopyWork& work);

// Returns whether the copy's source is read in the call if its stream has no unfinished work of its own, even if other
// streams, for which that stream waits, have: a small copy from page-locked memory to the device (measured on driver
// 580: up to 16 KiB).
bool may_be_read_in_call(const CopyWork& work);

// Replaces the source by a copy of its bytes.
void stage_source(CopyWork& work);

}  // namespace gpuwire::software_device
