// The threads' waits in a session, reported to the writer of a profile.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace gpuwire::client {

// A call's reply (and that its bytes have been sent), room in the send window, its turn in the server's queue.
enum class WaitKind : uint8_t { reply, room, queue };

// Told of each wait when it is over, by the thread that has waited, with no lock held. Nanoseconds of CLOCK_MONOTONIC.
// Set before there is a session; null: nobody. Relaxed: nothing is published through it.
using WaitObserver = void (*)(WaitKind kind, uint64_t begun_ns, uint64_t ended_ns) noexcept;
extern constinit std::atomic<WaitObserver> g_wait_observer;

// A wait is over: how many nanoseconds it took.
uint64_t note_wait(WaitKind kind, std::chrono::steady_clock::time_point begun) noexcept;

}  // namespace gpuwire::client
