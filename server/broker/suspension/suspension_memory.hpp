// SuspensionMemory is the view that suspensions have of the ledger: the memory that a suspended session releases, and
// takes again when it returns.
#pragma once

#include <cstdint>
#include <string>

#include "scheduler/types.hpp"
#include "server/broker/session/session_registry.hpp"

namespace gpuwire::server {

// The memory that a session lacks on a device.
struct MemoryShortage {
  // Whose memory has to become free: that of any sessions on the device; of the session's tenant, because of the
  // tenant's limit; of its user, because of the user's limit.
  enum class Of : uint8_t { device, tenant, user } of = Of::device;
  uint64_t bytes = 0;  // 0: nothing is missing
};

// The relief that suspensions bring for a request that finds too little memory.
enum class SuspensionRelief : uint8_t {
  none,
  perhaps,  // a session that could give way was not quiet a moment ago
  coming    // memory is on its way, or comes when a session that has just returned may be suspended again
};

// The broker's thread only.
class SuspensionMemory {
 public:
  // Returns why the session's memory must stay on the devices; empty: it may be released.
  virtual std::string why_not_released(const SessionRecord& session) const = 0;
  // Returns the bytes that release_memory() would release, over all devices; the second one, those of a device.
  virtual uint64_t releasable_bytes(const SessionRecord& session) const = 0;
  virtual uint64_t releasable_bytes(const SessionRecord& session, scheduler::DeviceIndex device) const = 0;
  // Returns the released bytes of the device that take_memory() would take.
  virtual uint64_t away_bytes(const SessionRecord& session, scheduler::DeviceIndex device) const = 0;
  // Returns the bytes of the device that the tenant's sessions have, used or reserved.
  virtual uint64_t held_bytes(scheduler::TenantId tenant, scheduler::DeviceIndex device) const = 0;
  // Returns what the session lacks for `bytes` more of the device's memory. The session may be waiting in the queue.
  virtual MemoryShortage shortage(const SessionRecord& session, scheduler::DeviceIndex device,
                                  uint64_t bytes) const = 0;
  // The session's memory on all its devices is with the host, and free for others: offer_memory() follows. Returns its
  // bytes over all devices.
  virtual uint64_t release_memory(const SessionRecord& session) = 0;
  // Gives released memory to the requests that wait for it.
  virtual void offer_memory() = 0;
  // Takes the released memory again, on all devices or on none. Returns false if there is too little free memory now.
  virtual bool take_memory(const SessionRecord& session) = 0;

 protected:
  ~SuspensionMemory() = default;
};

}  // namespace gpuwire::server
