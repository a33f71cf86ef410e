#include "server/software_device/driver/stream/work_observer.hpp"

#include <atomic>
#include <chrono>

namespace gpuwire::software_device {
namespace {

WorkObserver the_observer;
// Stored with release after the_observer was written, and loaded with acquire by threads that submit work.
std::atomic<const WorkObserver*> current{nullptr};
std::atomic<bool> taken{false};

}  // namespace

void set_work_observer(const WorkObserver& observer) {
  if (taken.exchange(true, std::memory_order_relaxed)) return;
  the_observer = observer;
  current.store(&the_observer, std::memory_order_release);
}

const WorkObserver* work_observer() noexcept { return current.load(std::memory_order_acquire); }

uint64_t observed_now_ns() noexcept {
  return uint64_t(std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
}

}  // namespace gpuwire::software_device
