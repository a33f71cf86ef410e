// Memory pools: here only a name and settings, for memory is allocated when asked for and given back when freed.
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
  bool created = false;    // not a device's default pool
  uint64_t bytes_max = 0;  // 0: no limit but the device's

  // A sum, for which no order is needed, and the largest one, which may lag behind by a concurrent change.
  struct Count {
    std::atomic<uint64_t> bytes{0}, high{0};
    void add(uint64_t more) noexcept;
  };
  Count used;      // down with the call that frees
  Count reserved;  // down when the stream has got there

  std::mutex mutex;
  std::map<CUmemPool_attribute, uint64_t> settings;  // under mutex
  std::map<int, CUmemAccess_flags> access;           // by device ordinal; under mutex
};

}  // namespace gpuwire::software_device
