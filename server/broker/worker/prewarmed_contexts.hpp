// The GPU memory of prewarmed workers' contexts: between the pools, which start and end them, and the ledger of memory,
// which knows the tenants' claims.
#pragma once

#include <cstddef>

#include "scheduler/types.hpp"

namespace gpuwire::server {

// The ledger. The broker's thread only.
class PrewarmedMemory {
 public:
  // The number of contexts that prewarmed workers may have on the device now, beside the tenants' held and guaranteed
  // memory.
  virtual size_t prewarmed_max(scheduler::DeviceIndex device) const = 0;
  // Their present number, including those that start, and those that were told to end and are not gone. A waiting
  // request for memory may be admitted before this returns.
  virtual void prewarmed_changed(scheduler::DeviceIndex device, size_t contexts) = 0;

 protected:
  ~PrewarmedMemory() = default;
};

// The pools. The broker's thread only.
class PrewarmedContexts {
 public:
  // Ends prewarmed workers with a context on the device until no more than `contexts` are left, and starts none beyond
  // that for a while (kPrewarmedRestMs). Does not wait for their ends, and reports nothing to PrewarmedMemory before it
  // returns.
  virtual void keep_at_most(scheduler::DeviceIndex device, size_t contexts) = 0;

 protected:
  ~PrewarmedContexts() = default;
};

}  // namespace gpuwire::server
