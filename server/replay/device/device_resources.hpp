// Parts of a device that a session may hold: what the driver writes into a CUdevResource stays here, and the client
// gets a ticket for it.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <deque>

namespace gpuwire::server {

// Of one session. A program has a handful; past this the oldest are forgotten.
inline constexpr size_t kDeviceResourcesMax = 1024;

// The structure is opaque but for its type and the numbers behind it: what else is in it is the driver's, which trusts
// it. So nothing that the client sends is handed to the driver as a resource; a ticket in it names one that the driver
// itself has written. Executor thread only.
class DeviceResources {
 public:
  // What the client gets for what the driver has written. The same bytes have the same ticket.
  CUdevResource seal(const CUdevResource& native);
  // What the driver had written. Null: this session was given no such resource, or it is long ago.
  const CUdevResource* find(const CUdevResource& sealed) const;
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    uint64_t ticket;
    CUdevResource native;
  };
  std::deque<Entry> entries_;  // oldest first
  uint64_t next_ticket_ = 1;
};

}  // namespace gpuwire::server
