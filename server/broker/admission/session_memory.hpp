// SessionMemory is the admission's view of memory, with the reservations that it makes before a session begins.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "scheduler/types.hpp"

namespace gpuwire::server {

// The broker's thread only.
class SessionMemory {
 public:
  // Returns the bytes of the device that sessions may have in all.
  virtual uint64_t device_bytes(scheduler::DeviceIndex device) const = 0;
  // Returns the bytes that could be reserved for this tenant now.
  virtual uint64_t free_bytes(scheduler::TenantId tenant, scheduler::DeviceIndex device) const = 0;
  // Returns the bytes of the device that the tenant's sessions have, used or reserved; the second one, those of one
  // session.
  virtual uint64_t held_bytes(scheduler::TenantId tenant, scheduler::DeviceIndex device) const = 0;
  virtual uint64_t held_bytes(scheduler::SessionId session, scheduler::TenantId tenant,
                              scheduler::DeviceIndex device) const = 0;
  // Whether the session's memory is with the host: it holds none of any device then.
  virtual bool is_away(scheduler::SessionId session, scheduler::TenantId tenant) const {
    (void)session, (void)tenant;
    return false;
  }
  // Returns the bytes reserved for sessions, whether they use them or not.
  virtual uint64_t reserved_bytes(scheduler::DeviceIndex device) const = 0;
  // Reserves so many bytes of each of the devices for the session, until it ends or release() is called. Returns false,
  // without any change, if one of the devices has too few free bytes by now. `user`: the tenant's user of the session;
  // empty: no particular one.
  virtual bool reserve(scheduler::SessionId session, scheduler::TenantId tenant, const std::string& user,
                       std::span<const scheduler::DeviceIndex> devices, uint64_t bytes) = 0;
  // Releases the reservation of a session that never began, if it has one.
  virtual void release(scheduler::SessionId session) = 0;

  // While a Poll exists, figures of memory may be cached: all waiting sessions are judged by one reading. Reservations
  // and releases meanwhile count at once.
  class Poll {
   public:
    explicit Poll(SessionMemory* memory) : memory_(memory) {
      if (memory_) memory_->poll_begins();
    }
    ~Poll() {
      if (memory_) memory_->poll_ends();
    }
    Poll(const Poll&) = delete;
    Poll& operator=(const Poll&) = delete;

   private:
    SessionMemory* memory_;
  };

 protected:
  ~SessionMemory() = default;

 private:
  virtual void poll_begins() {}
  virtual void poll_ends() {}
};

}  // namespace gpuwire::server
