// The holders of a handle of physical memory: cuMemRetainAllocationHandle returns the existing handle, and each of its
// holders releases it once (section "Virtual Memory Management" of the driver API). Also the device of the memory.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "client_stub/driver/state/session/session_part.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

// The holders of one session's handles. Any thread. The server's driver holds each handle once, whatever the count
// here.
class AllocationHolders final : public SessionPart {
 public:
  explicit AllocationHolders(SessionParts& parts) noexcept : SessionPart(parts) {}

  // Notes that the program was given the handle. `device` is the program's ordinal, if it is known.
  void hold(uint64_t handle, int device = kUnknownDevice) noexcept;
  // Notes that the program released the handle once. Returns true if the handle has no holder any more, so that the
  // server must release it; also for handles that are not counted, multicast objects, which have one holder.
  bool release(uint64_t handle) noexcept;
  // Returns the device of the memory. In a process with one device all memory is on that device.
  int device_of(uint64_t handle) const noexcept;

  void ended(SessionEnd) noexcept override {}      // the handles have ended with it
  void after_fork_in_child() noexcept override {}  // a child does not use it

 private:
  static constexpr int kUnknownDevice = -1;
  struct Held {
    uint64_t holders = 0;
    int device = kUnknownDevice;
  };
  // A leaf.
  mutable Mutex mutex_;
  std::unordered_map<uint64_t, Held> held_ GUARDED_BY(mutex_);
};

}  // namespace gpuwire::client
