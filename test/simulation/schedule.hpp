// The schedule of the simulation's threads. In session_simulation they are fibers of one thread of the system
// (fibers.cpp), with an order and a clock from a seed; in session_simulation_threads they are the system's
// (system_threads.cpp).
#pragma once

#include <cstdint>

namespace gpuwire::simulation {

// Precondition: called before a scenario, without any other thread. `stuck` is called, at most once, when every thread
// waits for ever, or when the scenario does not end within an hour of its clock; it does not return. `explains`: prints
// the threads' backtraces, for addr2line, when all of them wait for longer than a second.
void begin_schedule(uint64_t seed, void (*stuck)(const char* why), bool explains);

// Returns the time since begin_schedule() by the scenario's clock; 0 if that is the system's.
uint64_t scheduled_ns();

// Returns the part of that time in which every thread waited. The rest is the threads' own looks at the clock, whose
// number grows with the pieces that a scenario's data come in.
uint64_t scheduled_wait_ns();

}  // namespace gpuwire::simulation
