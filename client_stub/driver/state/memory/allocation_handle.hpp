// The holders of a handle of physical memory: cuMemRetainAllocationHandle returns the existing handle, and each of its
// holders releases it once (section "Virtual Memory Management" of the driver API). Also the device of the memory.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "client_stub/driver/state/session/session_part.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

// Those of one session. Any thread. The server's driver holds each handle once, whatever is counted here.
class AllocationHolders final : public SessionPart {
 public:
  explicit AllocationHolders(SessionParts& parts) noexcept : SessionPart(parts) {}

  // The program was given the handle. `device`: the program's ordinal, where it is known.
  void hold(uint64_t handle, int device = kUnknownDevice) noexcept;
  // The program released the handle once. True: it has no holder any more, and the server must release it. Also true
  // for handles that were never counted, multicast objects, which have one holder.
  bool release(uint64_t handle) noexcept;
  // In a process with one device all memory is on that device.
  int device_of(uint64_t handle) const noexcept;

  void ended(SessionEnd) noexcept override {}      // the handles have ended with it
  void after_fork_in_child() noexcept override {}  // nobody there asks

 private:
  static constexpr int kUnknownDevice = -1;
  struct Held {
    uint64_t holders = 0;
    int device = kUnknownDevice;
  };
  mutable Mutex mutex_;  // a leaf
  std::unordered_map<uint64_t, Held> held_ GUARDED_BY(mutex_);
};

}  // namespace gpuwire::client
