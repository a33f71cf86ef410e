// Fibers: threads that take turns on one thread of the system's. What a seed decided once, it decides again: which one
// runs next, where it is interrupted, and what the clock says.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuwire::simulation::fibers {

struct Fiber;

// No deadline.
inline constexpr uint64_t kNever = ~0ull;

Fiber* current();
// Runs `run(argument)` from the next switch on.
Fiber* create(void* (*run)(void*), void* argument);
// Waits for its end and forgets it.
void* join(Fiber* fiber);
// Forgets it at its end.
void detach(Fiber* fiber);

// Where a thread may be interrupted: at each call that threads have of each other. Some time passes.
void step();
// Lets another one run, if there is one.
void yield();
// Returns when somebody wakes who waits for `what`, or at the deadline; false: at the deadline.
bool wait(const void* what, uint64_t deadline_ns);
// Wakes up to `most` of those.
unsigned wake(const void* what, unsigned most);
// Returns when another one may have changed what only the system knows, or at the deadline (false).
bool wait_for_others(uint64_t deadline_ns);
// Who has waited for others goes on, and may change something for those who still do.
void found_something();

// A value that each of them has for itself, first null. At its end those that are not null are given to `destroy`,
// which may be null.
size_t make_key(void (*destroy)(void*));
// Nothing is destroyed.
void forget_key(size_t key);
void* value_of(size_t key);
void set_value_of(size_t key, void* value);

// The clock of all. It goes on with each step, faster with each look at it, and jumps when all wait for it.
uint64_t now_ns();
uint64_t read_clock();

}  // namespace gpuwire::simulation::fibers
