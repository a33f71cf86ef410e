// The fake CUPTI's additional interface: the work of a GPU that a test plays.
#pragma once

#include <cstdint>

#include "server/software_device/driver/stream/work_observer.hpp"

extern "C" {

// Returns a number for the work. Called in the thread of the driver call.
uint64_t fake_cupti_given();
void fake_cupti_done(const gpuwire::software_device::ObservedWork* work);

}  // extern "C"
