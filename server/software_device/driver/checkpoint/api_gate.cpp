#include "server/software_device/driver/checkpoint/api_gate.hpp"

namespace gpuwire::software_device {
namespace {

// The nesting depth of the thread's calls.
thread_local unsigned call_depth = 0;

}  // namespace

void ApiGate::enter() {
  if (call_depth++ > 0) return;
  MutexLock lock(mutex_);
  opened_.wait(lock.native(), [this]() REQUIRES(mutex_) { return !locked_; });
  ++under_way_;
}

void ApiGate::leave() {
  if (--call_depth > 0) return;
  const MutexLock lock(mutex_);
  if (--under_way_ == 0 && locked_) emptied_.notify_all();
}

bool ApiGate::lock(const Deadline& deadline) {
  MutexLock lock(mutex_);
  locked_ = true;
  const auto emptied = [this]() REQUIRES(mutex_) { return under_way_ == 0; };
  if (!deadline) {
    emptied_.wait(lock.native(), emptied);
    return true;
  }
  if (emptied_.wait_until(lock.native(), *deadline, emptied)) return true;
  locked_ = false;
  opened_.notify_all();
  return false;
}

void ApiGate::unlock() {
  const MutexLock lock(mutex_);
  locked_ = false;
  opened_.notify_all();
}

}  // namespace gpuwire::software_device
