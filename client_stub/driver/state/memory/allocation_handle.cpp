#include "client_stub/driver/state/memory/allocation_handle.hpp"

#include "client_stub/driver/process/process.hpp"

namespace gpuwire::client {

void AllocationHolders::hold(uint64_t handle, int device) noexcept {
  MutexLock lock(mutex_);
  try {
    Held& held = held_[handle];
    ++held.holders;
    if (device != kUnknownDevice) held.device = device;
  } catch (...) {  // no memory: the first release ends the handle
  }
}

bool AllocationHolders::release(uint64_t handle) noexcept {
  MutexLock lock(mutex_);
  auto found = held_.find(handle);
  if (found == held_.end()) return true;
  if (--found->second.holders > 0) return false;
  held_.erase(found);
  return true;
}

int AllocationHolders::device_of(uint64_t handle) const noexcept {
  MutexLock lock(mutex_);
  auto found = held_.find(handle);
  if (found != held_.end() && found->second.device != kUnknownDevice) return found->second.device;
  return process() && process()->devices.size() == 1 ? 0 : kUnknownDevice;
}

}  // namespace gpuwire::client
