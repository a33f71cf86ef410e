// Device resources that a session may hold: the driver's content of a CUdevResource stays at the server, and the client
// gets a ticket for it.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <deque>

namespace gpuwire::server {

// The bound of one session. A program has a handful; beyond the bound the oldest are evicted.
inline constexpr size_t kDeviceResourcesMax = 1024;

// A CUdevResource is opaque except for its type and the numbers after it. The driver trusts the opaque content, so no
// bytes from the client reach the driver as a resource: the client's bytes hold a ticket, which names a resource that
// the driver itself has written. Executor thread only.
class DeviceResources {
 public:
  // Returns the client's ticket for a resource of the driver. The same bytes have the same ticket.
  CUdevResource seal(const CUdevResource& native);
  // Returns the driver's resource, or null if this session was given no such resource, or the resource was evicted.
  const CUdevResource* find(const CUdevResource& sealed) const;
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    uint64_t ticket;
    CUdevResource native;
  };
  // The oldest entry is first.
  std::deque<Entry> entries_;
  uint64_t next_ticket_ = 1;
};

}  // namespace gpuwire::server
