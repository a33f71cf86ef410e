// A callback for each piece of work with its times, as profilers receive from NVIDIA's driver.
#pragma once

#include <cstdint>

namespace gpuwire::software_device {

inline constexpr uint32_t kObservedKernel = 0, kObservedCopy = 1, kObservedFill = 2, kObservedGraph = 3;

// The argument of gpuwire_software_observe_work()'s callback; part of the library's interface.
struct ObservedWork {
  uint32_t kind = kObservedKernel;
  uint64_t number = 0;                // the result of `given`
  uint64_t start_ns = 0, end_ns = 0;  // CLOCK_MONOTONIC
  uint64_t bytes = 0;                 // copied or filled bytes
  const char* name = nullptr;         // of a kernel; valid during the call
};

struct WorkObserver {
  // Called in the submitting thread, before the work may begin. Returns a number for the work.
  uint64_t (*given)(void* user) = nullptr;
  // Called in the thread that has executed the work.
  void (*done)(void* user, const ObservedWork* work) = nullptr;
  void* user = nullptr;
};

// Called once in a process; the observer lives as long as the process. Work that was submitted before is not reported.
void set_work_observer(const WorkObserver& observer);

// Returns null if there is no observer.
const WorkObserver* work_observer() noexcept;

uint64_t observed_now_ns() noexcept;

}  // namespace gpuwire::software_device
