// The observer of each piece of work and its times, as tools that look into NVIDIA's driver observe it there.
#pragma once

#include <cstdint>

namespace gpuwire::software_device {

inline constexpr uint32_t kObservedKernel = 0, kObservedCopy = 1, kObservedFill = 2, kObservedGraph = 3;

// As gpuwire_software_observe_work() hands it over; part of the library's interface.
struct ObservedWork {
  uint32_t kind = kObservedKernel;
  uint64_t number = 0;                // the answer of `given`
  uint64_t start_ns = 0, end_ns = 0;  // CLOCK_MONOTONIC
  uint64_t bytes = 0;                 // moved or filled
  const char* name = nullptr;         // of a kernel; until the call returns
};

struct WorkObserver {
  // In the thread that gives the work, before it may begin: a number for it.
  uint64_t (*given)(void* user) = nullptr;
  // In the thread that has done it.
  void (*done)(void* user, const ObservedWork* work) = nullptr;
  void* user = nullptr;
};

// Once in a process; it stays as long as the process. Work that was given before goes untold.
void set_work_observer(const WorkObserver& observer);

// Null: nobody wants to know.
const WorkObserver* work_observer() noexcept;

uint64_t observed_now_ns() noexcept;

}  // namespace gpuwire::software_device
