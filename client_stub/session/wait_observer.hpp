// Reports the threads' waits in a session to the writer of a profile.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace gpuwire::client {

// The wait for a call's reply (and the sending of its bytes), for room in the send window, or in the server's queue.
enum class WaitKind : uint8_t { reply, room, queue };

// Called after each wait, by the thread that has waited. Lock: none. Times are nanoseconds of CLOCK_MONOTONIC. Set
// before the first session; null: none. Relaxed: nothing is published through it.
using WaitObserver = void (*)(WaitKind kind, uint64_t begun_ns, uint64_t ended_ns) noexcept;
extern constinit std::atomic<WaitObserver> g_wait_observer;

// Ends a wait. Returns its nanoseconds.
uint64_t note_wait(WaitKind kind, std::chrono::steady_clock::time_point begun) noexcept;

}  // namespace gpuwire::client
