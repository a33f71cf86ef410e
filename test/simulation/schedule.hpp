// In which order the simulation's threads run. session_simulation has them as fibers of one thread of the system's
// (fibers.cpp), in an order and by a clock that a seed decides; session_simulation_threads has the system's
// (system_threads.cpp).
#pragma once

#include <cstdint>

namespace gpuwire::simulation {

// Before a scenario, while no other thread is there. `stuck` is called, at most once, when every thread waits for ever,
// or the scenario does not end within an hour of its clock; it does not return. `explains`: where
// threads are is printed, for addr2line, when all of them wait for longer than a second.
void begin_schedule(uint64_t seed, void (*stuck)(const char* why), bool explains);

// Since begin_schedule(), by the scenario's clock. 0 where that is the system's.
uint64_t scheduled_ns();

}  // namespace gpuwire::simulation
