// Fibers are threads that take turns on one thread of the system. A seed determines which one runs next, where it is
// interrupted, and the clock.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuwire::simulation::fibers {

struct Fiber;

// No deadline.
inline constexpr uint64_t kNever = ~0ull;

Fiber* current();
// Creates a fiber, which runs `run(argument)` from the next switch on.
Fiber* create(void* (*run)(void*), void* argument);
// Waits for the fiber's end and destroys it.
void* join(Fiber* fiber);
// Lets the fiber be destroyed at its end.
void detach(Fiber* fiber);

// A point at which a fiber may be interrupted: called in each synchronising call. Advances the clock.
void step();
// Lets another fiber run, if there is one.
void yield();
// Waits until wake() is called for `what`, or until the deadline; false: the deadline has passed.
bool wait(const void* what, uint64_t deadline_ns);
// Wakes up to `most` waiters of `what`.
unsigned wake(const void* what, unsigned most);
// Waits until another fiber may have changed state that only the system knows, or until the deadline (false).
bool wait_for_others(uint64_t deadline_ns);
// Called by a fiber that continues after wait_for_others(): it may change state for the fibers that still wait.
void found_something();

// Makes a key for a value of each fiber, null at first. At a fiber's end a value that is not null is passed to
// `destroy`, which may be null.
size_t make_key(void (*destroy)(void*));
// Removes the key without destroying values.
void forget_key(size_t key);
void* value_of(size_t key);
void set_value_of(size_t key, void* value);

// The common clock. It advances with each step, more with each read_clock(), and jumps when all fibers wait for it.
uint64_t now_ns();
uint64_t read_clock();

}  // namespace gpuwire::simulation::fibers
