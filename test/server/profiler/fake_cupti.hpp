// What the fake CUPTI can be told besides what CUPTI can: the work of a GPU that a test plays.
#pragma once

#include <cstdint>

#include "server/software_device/driver/stream/work_observer.hpp"

extern "C" {

// In the thread whose driver call gives it: a number for the work.
uint64_t fake_cupti_given();
void fake_cupti_done(const gpuwire::software_device::ObservedWork* work);

}  // extern "C"
