// What the admission has to know of memory, and the reservations that it makes before a session begins.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "scheduler/types.hpp"

namespace gpuwire::server {

// The broker's thread only.
class SessionMemory {
 public:
  // What may be given out on the device at all.
  virtual uint64_t device_bytes(scheduler::DeviceIndex device) const = 0;
  // How much could be reserved for this tenant now.
  virtual uint64_t free_bytes(scheduler::TenantId tenant, scheduler::DeviceIndex device) const = 0;
  // What the tenant's sessions have of the device, used or reserved; and what one of them has.
  virtual uint64_t held_bytes(scheduler::TenantId tenant, scheduler::DeviceIndex device) const = 0;
  virtual uint64_t held_bytes(scheduler::SessionId session, scheduler::TenantId tenant,
                              scheduler::DeviceIndex device) const = 0;
  // What is reserved for sessions, used by them or not.
  virtual uint64_t reserved_bytes(scheduler::DeviceIndex device) const = 0;
  // From now on so many bytes of each of the devices are the session's alone, until it ends or release() is called.
  // False: they are not to be had on all of them any more, and nothing has changed.
  // `user`: whose of the tenant the session is; empty: no particular user's.
  virtual bool reserve(scheduler::SessionId session, scheduler::TenantId tenant, const std::string& user,
                       std::span<const scheduler::DeviceIndex> devices, uint64_t bytes) = 0;
  // One that never began. Nothing happens when nothing is reserved.
  virtual void release(scheduler::SessionId session) = 0;

  // While one exists, what was read of memory need not be read again: everybody who waits is judged by the same moment,
  // at the cost of one. What is reserved or given back meanwhile counts at once.
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
