// Parts of a device that a session may hold: the driver's content of a CUdevResource stays here, and the client gets a
// ticket for it.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <deque>

namespace gpuwire::server {

// Of one session. A program has a handful; past this the oldest are forgotten.
inline constexpr size_t kDeviceResourcesMax = 1024;

// The structure is opaque except for its type and the numbers behind it: its other content is the driver's, which
// trusts it. So no bytes from the client reach the driver as a resource; a ticket in them names a resource that the
// driver itself has written. Executor thread only.
class DeviceResources {
 public:
  // The client's ticket for a resource of the driver. The same bytes have the same ticket.
  CUdevResource seal(const CUdevResource& native);
  // The driver's resource. Null: this session was given no such resource, or it was evicted.
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
