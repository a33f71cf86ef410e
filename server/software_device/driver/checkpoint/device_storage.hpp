// Every piece of device memory that this process has: what a checkpoint moves to the host, and back to where it was.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include <cuda.h>

namespace gpuwire::software_device {

struct Device;

struct StoragePiece {
  enum class Kind : uint8_t {
    pages,  // mapped for the piece alone
    heap,   // of the process's heap
    file,   // physical memory, which is mapped somewhere or nowhere
  };
  Kind kind = Kind::pages;
  void* memory = nullptr;     // of pages and heap
  uint64_t mapped_bytes = 0;  // of pages
  int file = -1;              // of a file; the owner's
  uint64_t bytes = 0;         // of contents, for which the device is charged
  Device* device = nullptr;
};

// The owner of a piece adds it when it has it, and removes it before it gives it back. Any thread.
class DeviceStorage {
 public:
  // `owner`: any address that no other piece is called by.
  void add(const void* owner, const StoragePiece& piece);
  void remove(const void* owner);

  // --- while no call and no work is under way ---
  // All contents to files in memory; then the device's memory is let go of. CUDA_ERROR_OUT_OF_MEMORY: the host has no
  // room, and nothing has changed.
  CUresult evict();
  // CUDA_ERROR_OUT_OF_MEMORY: the device has no room, and nothing has changed. CUDA_ERROR_UNKNOWN: contents are lost.
  CUresult bring_back();

 private:
  struct Saved {
    StoragePiece piece;
    uint64_t offset = 0;  // in its device's file
  };
  CUresult save(std::vector<Saved>& saved);
  bool charge(std::vector<Saved>& saved);
  void drop_files();

  std::mutex mutex_;
  std::map<const void*, StoragePiece> pieces_;
  std::vector<Saved> saved_;            // while evicted
  std::map<const Device*, int> files_;  // while evicted: one for each device, no larger than its memory
};

}  // namespace gpuwire::software_device
