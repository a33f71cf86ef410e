// The advice of programs about the pages of managed memory, and the targets of their prefetches. Host and device share
// one memory here, so these affect only the results of cuMemRangeGetAttribute.
#pragma once

#include <cstdint>
#include <map>

#include <cuda.h>

#include "protocol/threads/mutex.hpp"

namespace gpuwire::software_device {

// The state of one page, or of a run of equal pages.
struct PageAdvice {
  struct Location {
    CUmemLocationType type = CU_MEM_LOCATION_TYPE_INVALID;
    int id = CU_DEVICE_INVALID;

    bool operator==(const Location&) const = default;
  };

  bool read_mostly = false;
  Location preferred, prefetched;
  uint32_t accessed_by = 0;  // a bit per device ordinal
  bool accessed_by_host = false;

  bool operator==(const PageAdvice&) const = default;
};

// The advice about one allocation. Thread: any.
class ManagedAdvice {
 public:
  // Changes all pages that overlap [offset, offset + bytes).
  template <typename Change>
  void change(uint64_t offset, uint64_t bytes, Change&& change) {
    const MutexLock lock(mutex_);
    const auto first = split(offset / kAdvicePageBytes);
    const auto end = split((offset + bytes - 1) / kAdvicePageBytes + 1);
    for (auto run = first; run != end; ++run) {
      change(run->second);
    }
    join();
  }
  // Returns the common state of all those pages. A location that they do not share is CU_MEM_LOCATION_TYPE_INVALID.
  PageAdvice common(uint64_t offset, uint64_t bytes) const;

 private:
  static constexpr uint64_t kAdvicePageBytes = 4096;

  using Runs = std::map<uint64_t, PageAdvice>;  // by first page; each run ends where the next begins
  Runs::iterator split(uint64_t page) REQUIRES(mutex_);
  void join() REQUIRES(mutex_);

  mutable Mutex mutex_;
  Runs runs_ GUARDED_BY(mutex_){{0, {}}};
};

}  // namespace gpuwire::software_device
