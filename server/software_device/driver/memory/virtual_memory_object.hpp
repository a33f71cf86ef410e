// Virtual memory management: reserved addresses, and physical memory that is mapped there.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>

#include <cuda.h>

#include "protocol/threads/mutex.hpp"

namespace gpuwire::software_device {

struct Device;

// The object of a cuMemCreate handle: an anonymous file whose pages can be mapped at several addresses.
struct PhysicalMemory {
  PhysicalMemory(Device& device, uint64_t bytes, int file) : device(device), bytes(bytes), file(file) {}
  ~PhysicalMemory();
  PhysicalMemory(const PhysicalMemory&) = delete;
  PhysicalMemory& operator=(const PhysicalMemory&) = delete;

  Device& device;
  const uint64_t bytes;
  const int file;
  bool charged = true;  // false: the memory belongs to another process, to which it is charged
  CUmemAllocationProp properties{};
  CUmemGenericAllocationHandle handle = 0;  // the requested one
  // References to that handle. Relaxed: the table's lock publishes everything else.
  std::atomic<uint32_t> references{1};
};

// The reserved ranges of the process's address space. They are inaccessible until memory is mapped there.
class AddressReservations {
 public:
  // Reserves at `hint` if that is free, else elsewhere. Returns 0 if there is no room.
  uint64_t reserve(uint64_t bytes, uint64_t alignment, uint64_t hint);
  bool release(uint64_t address, uint64_t bytes);
  bool covers(uint64_t address, uint64_t bytes);
  struct Range {
    uint64_t begin = 0, bytes = 0;
  };
  // Returns the range that contains the address.
  std::optional<Range> find(uint64_t address);

 private:
  Mutex mutex_;
  std::map<uint64_t, uint64_t> ranges_ GUARDED_BY(mutex_);  // begin to bytes
};

}  // namespace gpuwire::software_device
