// The interfaces for the GPU memory of prewarmed workers' contexts: the pools start and end the workers, and the memory
// ledger knows the tenants' claims.
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
  // Reports the present number of contexts, those of starting and of ending workers included. A waiting request for
  // memory may be admitted before this returns.
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
