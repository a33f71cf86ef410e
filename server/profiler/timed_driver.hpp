// Generated from protocol/api (`gives_work`): generated/server/timed_driver.cpp.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace gpuwire::server {

struct DriverTable;
class GpuProfiler;

// Replaces the functions that give the GPU work by ones that have it timed and call profiler.driver()'s. Once in a
// process, while no other thread uses these functions of the table.
void put_profiler_before(DriverTable& table, GpuProfiler& profiler);

// --- for the generated code: how many bytes a call moves or fills, by its arguments; 0: not known --------------------

template <class... Rest>
uint64_t moved_bytes(const Rest&...) {
  return 0;
}
template <class... Rest>
uint64_t moved_bytes(const CUDA_MEMCPY2D* copy, const Rest&...) {
  return copy ? uint64_t(copy->WidthInBytes) * copy->Height : 0;
}
template <class... Rest>
uint64_t moved_bytes(const CUDA_MEMCPY3D* copy, const Rest&...) {
  return copy ? uint64_t(copy->WidthInBytes) * copy->Height * copy->Depth : 0;
}
template <class... Rest>
uint64_t moved_bytes(const CUDA_MEMCPY3D_PEER* copy, const Rest&...) {
  return copy ? uint64_t(copy->WidthInBytes) * copy->Height * copy->Depth : 0;
}
// Several copies: destinations, sources, sizes and how many.
template <class... Rest>
uint64_t moved_bytes(CUdeviceptr*, CUdeviceptr*, size_t* sizes, size_t count, const Rest&...) {
  uint64_t sum = 0;
  for (size_t i = 0; sizes && i < count; ++i) sum += sizes[i];
  return sum;
}
// Prefetching.
template <class... Rest>
uint64_t moved_bytes(CUdeviceptr, size_t bytes, const Rest&...) {
  return bytes;
}

template <class Value>
uint64_t filled_bytes(CUdeviceptr, Value, size_t count, CUstream = nullptr) {
  return uint64_t(count) * sizeof(Value);
}
template <class Value>
uint64_t filled_bytes(CUdeviceptr, size_t, Value, size_t width, size_t height, CUstream = nullptr) {
  return uint64_t(width) * height * sizeof(Value);
}

}  // namespace gpuwire::server
