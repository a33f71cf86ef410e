// Charges of physical memory made by cuMemCreate: charged until no reference to its handle and no mapping is left.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>

#include "protocol/threads/mutex.hpp"
#include "server/ledger/worker/session_ledger.hpp"

namespace gpuwire::server {

// Any thread.
class VirtualMemoryCharges {
 public:
  explicit VirtualMemoryCharges(SessionLedger& ledger) : ledger_(ledger) {}

  void created(CUmemGenericAllocationHandle handle, uint32_t column, uint64_t bytes);
  // Records a further reference to the handle.
  void retained(CUmemGenericAllocationHandle handle, CUdeviceptr address);
  void released(CUmemGenericAllocationHandle handle);
  void mapped(CUdeviceptr address, uint64_t bytes, CUmemGenericAllocationHandle handle);
  void unmapped(CUdeviceptr address, uint64_t bytes);
  // Records that others may hold the memory: another process, or a multicast object.
  void leave(CUmemGenericAllocationHandle handle);
  void leave_mapped(CUdeviceptr address);

 private:
  struct Physical {
    uint32_t column = 0;
    uint64_t bytes = 0;
    unsigned holders = 1, mappings = 0;
    bool left = false;
  };
  struct Mapping {
    uint64_t bytes = 0;
    std::shared_ptr<Physical> physical;
  };
  std::shared_ptr<Physical> at(CUdeviceptr address) const REQUIRES(mutex_);
  void leave(Physical& physical) REQUIRES(mutex_);
  void give_back_if_unused(const Physical& physical) REQUIRES(mutex_);

  SessionLedger& ledger_;
  // A leaf.
  Mutex mutex_;
  std::unordered_map<CUmemGenericAllocationHandle, std::shared_ptr<Physical>> handles_ GUARDED_BY(mutex_);
  std::map<CUdeviceptr, Mapping> mappings_ GUARDED_BY(mutex_);
};

}  // namespace gpuwire::server
