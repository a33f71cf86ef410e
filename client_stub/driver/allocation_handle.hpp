// Who holds a handle of physical memory: cuMemRetainAllocationHandle gives the handle that there is, and each of its holders releases it once
// (section "Virtual Memory Management" of the driver API).
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace gpuwire::client {

// Any thread. The server's driver holds each handle once, whatever is counted here.
class AllocationHolders {
 public:
  // The program was given the handle.
  void hold(uint64_t handle) noexcept;
  // The program let go of the handle once. True: nobody holds it any more, and the server is to be told. So it is for handles that were
  // never counted, multicast objects, which have one holder.
  bool release(uint64_t handle) noexcept;

 private:
  std::mutex mutex_;  // a leaf
  std::unordered_map<uint64_t, uint64_t> holders_;
};

AllocationHolders& allocation_holders() noexcept;

}  // namespace gpuwire::client
