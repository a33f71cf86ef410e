// What the contexts of spare workers take of the GPUs' memory: between the pools, which start and end them, and the
// ledger of memory, which knows what tenants may ask for.
#pragma once

#include <cstddef>

#include "scheduler/types.hpp"

namespace gpuwire::server {

// The ledger. The broker's thread only.
class SpareMemory {
 public:
  // How many contexts spares may have on the device now, beside what tenants hold and are guaranteed.
  virtual size_t spares_max(scheduler::DeviceIndex device) const = 0;
  // How many they have, those included that start, and that were told to end and are not gone. Whoever waits for memory
  // may be let in before this returns.
  virtual void spares_are(scheduler::DeviceIndex device, size_t contexts) = 0;

 protected:
  ~SpareMemory() = default;
};

// The pools. The broker's thread only.
class SpareContexts {
 public:
  // Ends spares whose context is on the device until no more than `contexts` are left, and starts none beyond that for
  // a while (kSpareRestMs). Does not wait for their ends, and tells SpareMemory nothing before it returns.
  virtual void keep_at_most(scheduler::DeviceIndex device, size_t contexts) = 0;

 protected:
  ~SpareContexts() = default;
};

}  // namespace gpuwire::server
