// Generated from protocol/api (`gives_work`): generated/server/timed_driver.cpp.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "server/driver_table.hpp"

namespace gpuwire::server {

// The numbers of protocol/api/session.toml. `method` is no work: its name describes the method of measurement.
enum class SpanKind : uint8_t { kernel, copy, memset, graph, method };

// One call that gives the GPU work, as the profiler sees it.
struct TimedWork {
  SpanKind kind = SpanKind::kernel;
  // The driver function; lives as long as the program.
  const char* call = "";
  // Or a CUkernel in its place.
  CUfunction kernel = nullptr;
  CUstream stream = nullptr;
  uint64_t bytes = 0;
};

// The layer in front of the driver's functions while work is timed.
class WorkTimer {
 public:
  // The former table.
  const DriverTable& driver() const { return driver_; }
  template <class Call>
  CUresult time(const TimedWork& work, Call&& call) {
    Pair pair = before(work);
    const CUresult result = std::forward<Call>(call)();
    if (pair.where) after(work, pair, result == CUDA_SUCCESS);
    return result;
  }

 protected:
  // The events around one call; private to the executor until the work is pending.
  struct Pair {
    // Belongs to the timer; null: the call is not timed.
    void* where = nullptr;
    CUevent start = nullptr, end = nullptr;
  };

  ~WorkTimer() = default;
  virtual Pair before(const TimedWork& work) = 0;
  virtual void after(const TimedWork& work, const Pair& pair, bool done) = 0;

  // Written before put_profiler_before().
  DriverTable driver_;
};

// Replaces the functions that give the GPU work by functions that time the work and call those of timer.driver(). Call
// it once in a process, while no other thread uses these functions of the table.
void put_profiler_before(DriverTable& table, WorkTimer& timer);

// --- for the generated code: the number of bytes that a call moves or fills, from its arguments; 0: unknown
// --------------------

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
// Several copies: destinations, sources, sizes and their number.
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
