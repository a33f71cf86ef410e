// Virtual memory management: addresses that are reserved, and physical memory that is mapped there.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include <cuda.h>

namespace gpuwire::software_device {

struct Device;

// A handle of cuMemCreate: an anonymous file whose pages can be mapped at several addresses.
struct PhysicalMemory {
  PhysicalMemory(Device& device, uint64_t bytes, int file) : device(device), bytes(bytes), file(file) {}
  ~PhysicalMemory();
  PhysicalMemory(const PhysicalMemory&) = delete;
  PhysicalMemory& operator=(const PhysicalMemory&) = delete;

  Device& device;
  const uint64_t bytes;
  const int file;
  bool charged = true;  // false: another process's, which pays for it
  CUmemAllocationProp properties{};
  CUmemGenericAllocationHandle handle = 0;  // the requested one
  std::atomic<uint32_t> references{1};      // of that handle; a count alone, the table's lock publishes the rest
};

// The reserved ranges of the process's address space, none of them accessible until something is mapped there.
class AddressReservations {
 public:
  // At `hint` when that is free, elsewhere otherwise; 0 when there is no room.
  uint64_t reserve(uint64_t bytes, uint64_t alignment, uint64_t hint);
  bool release(uint64_t address, uint64_t bytes);
  bool covers(uint64_t address, uint64_t bytes);
  struct Range {
    uint64_t begin = 0, bytes = 0;
  };
  // The range that holds the address.
  std::optional<Range> find(uint64_t address);

 private:
  std::mutex mutex_;
  std::map<uint64_t, uint64_t> ranges_;  // begin to bytes
};

}  // namespace gpuwire::software_device
