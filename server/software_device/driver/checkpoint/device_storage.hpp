// DeviceStorage lists every piece of device memory of this process. A checkpoint moves the pieces to the host and back.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <cuda.h>

#include "protocol/threads/mutex.hpp"

namespace gpuwire::software_device {

struct Device;

struct StoragePiece {
  enum class Kind : uint8_t {
    pages,  // mapped for the piece only
    heap,   // from the process's heap
    file,   // physical memory, mapped at any number of addresses
  };
  Kind kind = Kind::pages;
  void* memory = nullptr;     // of pages and heap
  uint64_t mapped_bytes = 0;  // of pages
  int file = -1;              // of a file; its owner closes it
  uint64_t bytes = 0;         // of contents, which are charged to the device
  Device* device = nullptr;
};

// The owner of a piece adds it after the allocation, and removes it before the release. Thread: any.
class DeviceStorage {
 public:
  // `owner` is an address that identifies the piece.
  void add(const void* owner, const StoragePiece& piece);
  void remove(const void* owner);

  // --- only while no call and no work is running ---
  // Copies all contents to files in memory, then releases the device's memory. Returns CUDA_ERROR_OUT_OF_MEMORY, and
  // changes nothing, if the host has no room.
  CUresult evict();
  // Copies all contents back. CUDA_ERROR_OUT_OF_MEMORY: the device has no room, and nothing has changed.
  // CUDA_ERROR_UNKNOWN: contents are lost.
  CUresult bring_back();

 private:
  struct Saved {
    StoragePiece piece;
    uint64_t offset = 0;  // in the file of its device
  };
  CUresult save(std::vector<Saved>& saved) REQUIRES(mutex_);
  bool charge(std::vector<Saved>& saved);
  void drop_files() REQUIRES(mutex_);

  Mutex mutex_;
  std::map<const void*, StoragePiece> pieces_ GUARDED_BY(mutex_);
  std::vector<Saved> saved_ GUARDED_BY(mutex_);  // during a checkpoint
  // During a checkpoint: a file for each device, no larger than the device's memory.
  std::map<const Device*, int> files_ GUARDED_BY(mutex_);
};

}  // namespace gpuwire::software_device
