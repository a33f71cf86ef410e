// Who holds a handle of physical memory: cuMemRetainAllocationHandle gives the handle that there is, and each of its
// holders releases it once (section "Virtual Memory Management" of the driver API).
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "client_stub/driver/session/session_part.hpp"

namespace gpuwire::client {

// Those of one session. Any thread. The server's driver holds each handle once, whatever is counted here.
class AllocationHolders final : public SessionPart {
 public:
  explicit AllocationHolders(SessionParts& parts) noexcept : SessionPart(parts) {}

  // The program was given the handle.
  void hold(uint64_t handle) noexcept;
  // The program let go of the handle once. True: nobody holds it any more, and the server is to be told. So it is for
  // handles that were never counted, multicast objects, which have one holder.
  bool release(uint64_t handle) noexcept;

  void ended(SessionEnd) noexcept override {}      // the handles have ended with it
  void after_fork_in_child() noexcept override {}  // nobody there asks

 private:
  std::mutex mutex_;  // a leaf
  std::unordered_map<uint64_t, uint64_t> holders_;
};

}  // namespace gpuwire::client
