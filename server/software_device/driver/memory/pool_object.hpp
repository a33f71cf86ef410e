// Memory pools. A pool is only a name and settings here, because memory is allocated on request and returned when
// freed.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>

#include <cuda.h>

namespace gpuwire::software_device {

struct Pool {
  CUmemoryPool handle = nullptr;
  int device = 0;
  bool created = false;    // false: a device's default pool
  uint64_t bytes_max = 0;  // 0: only the device's limit applies

  // A sum, which is relaxed, and its maximum, which may lag behind by a concurrent change.
  struct Count {
    std::atomic<uint64_t> bytes{0}, high{0};
    void add(uint64_t more) noexcept;
  };
  Count used;      // decreased by the call that frees
  Count reserved;  // decreased when the stream reaches the free

  std::mutex mutex;
  std::map<CUmemPool_attribute, uint64_t> settings;  // guarded by mutex
  std::map<int, CUmemAccess_flags> access;           // by device ordinal; guarded by mutex
};

}  // namespace gpuwire::software_device
