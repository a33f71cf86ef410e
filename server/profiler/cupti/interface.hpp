// The part of CUPTI that the worker uses: functions, constants, and the beginnings of records ("CUPTI", reference of
// the activity API). Declared here, so that the server builds without the toolkit's header and runs with all versions
// below; a test compares the declarations with the header if it is installed.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace gpuwire::server::cupti {

using Result = int;  // CUptiResult
inline constexpr Result kSuccess = 0;
inline constexpr Result kMaxLimitReached = 12;  // the end of a buffer

// The result of cuptiGetVersion(): 18 is CUDA 11.8, 19 to 28 are 12.0 to 12.9, from 13.0 on it is the version in
// decimal places. In all of them the records below begin in the same way, and graphs are traced; later major versions
// are unknown.
inline constexpr uint32_t kApiOldest = 18, kApiOldStyleNewest = 28;
inline constexpr uint32_t kApiNewStyleOldest = 130'000, kApiUnknown = 140'000;

enum Kind : uint32_t {  // CUpti_ActivityKind
  kMemcpy = 1,
  kMemset = 2,
  kDriver = 4,
  kConcurrentKernel = 10,
  kMemcpyPeer = 22,
  kExternalCorrelation = 39,
  kGraphTrace = 51,
};
inline constexpr uint32_t kFlushForced = 1;            // CUPTI_ACTIVITY_FLAG_FLUSH_FORCED
inline constexpr uint32_t kCorrelationCustom0 = 3;     // CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0
inline constexpr uint32_t kDeviceBufferPoolLimit = 2;  // CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT

// Functions whose calls need no record (cupti_driver_cbid.h): the worker calls them for its own purposes, some of them
// continually, and none gives the GPU work.
inline constexpr uint32_t kCallsWithoutRecords[] = {
    119,  // cuEventRecord
    120,  // cuEventQuery
    123,  // cuEventElapsedTime
    125,  // cuStreamQuery
    303,  // cuCtxSetCurrent
    304,  // cuCtxGetCurrent
    499,  // cuStreamIsCapturing
    780,  // cuEventElapsedTime_v2
};

// Times are in ns, by the clock that CUPTI was given; both 0: unknown.
struct Activity {
  uint32_t kind;
};
struct KernelActivity {
  uint32_t kind;
  uint32_t configuration[3];
  uint64_t start, end;
  uint64_t completed;
  uint32_t device, context, stream;
  uint32_t shape[10];
  uint32_t correlation;
  int64_t grid;
  // CUPTI's own, as long as it is loaded.
  const char* name;
};
struct CopyActivity {
  uint32_t kind;
  uint32_t kinds_of_memory;
  uint64_t bytes;
  uint64_t start, end;
  uint32_t device, context, stream;
  uint32_t correlation;
};
struct PeerCopyActivity {
  uint32_t kind;
  uint32_t kinds_of_memory;
  uint64_t bytes;
  uint64_t start, end;
  uint32_t device, context, stream;
  uint32_t ends[4];
  uint32_t correlation;
};
struct MemsetActivity {
  uint32_t kind;
  uint32_t value;
  uint64_t bytes;
  uint64_t start, end;
  uint32_t device, context, stream;
  uint32_t correlation;
};
struct GraphActivity {
  uint32_t kind;
  uint32_t correlation;
  uint64_t start, end;
};
// Reports that the driver call `correlation` was made while `external` was pushed.
struct ExternalCorrelationActivity {
  uint32_t kind;
  uint32_t external_kind;
  uint64_t external;
  uint32_t correlation;
  uint32_t reserved;
};

using BufferRequested = void(CUDAAPI*)(uint8_t** buffer, size_t* bytes, size_t* records_max);
using BufferCompleted = void(CUDAAPI*)(CUcontext, uint32_t stream, uint8_t* buffer, size_t bytes, size_t valid_bytes);
using Timestamp = uint64_t(CUDAAPI*)();

// CUPTI's functions, by their names without "cupti".
struct Functions {
  Result(CUDAAPI* GetVersion)(uint32_t*) = nullptr;
  Result(CUDAAPI* GetResultString)(Result, const char**) = nullptr;
  Result(CUDAAPI* ActivityRegisterTimestampCallback)(Timestamp) = nullptr;
  Result(CUDAAPI* ActivityRegisterCallbacks)(BufferRequested, BufferCompleted) = nullptr;
  Result(CUDAAPI* ActivityEnable)(uint32_t kind) = nullptr;
  Result(CUDAAPI* ActivityDisable)(uint32_t kind) = nullptr;
  Result(CUDAAPI* ActivityFlushAll)(uint32_t flags) = nullptr;
  Result(CUDAAPI* ActivityGetNextRecord)(uint8_t* buffer, size_t valid_bytes, Activity** record) = nullptr;
  Result(CUDAAPI* ActivityGetNumDroppedRecords)(CUcontext, uint32_t stream, size_t* dropped) = nullptr;
  Result(CUDAAPI* ActivityPushExternalCorrelationId)(uint32_t kind, uint64_t id) = nullptr;
  Result(CUDAAPI* ActivityPopExternalCorrelationId)(uint32_t kind, uint64_t* last) = nullptr;
  // Null: the version lacks the function, which only saves costs.
  Result(CUDAAPI* ActivitySetAttribute)(uint32_t attribute, size_t* bytes, void* value) = nullptr;
  Result(CUDAAPI* ActivityEnableDriverApi)(uint32_t function, uint8_t enable) = nullptr;
};

}  // namespace gpuwire::server::cupti
