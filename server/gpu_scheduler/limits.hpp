// Bounds of the GPU scheduler.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

namespace gpuwire::server {

using namespace std::chrono_literals;

inline constexpr unsigned kSchedulerSpinCoresMin = 4;
// While sessions share a GPU, the pages are polled for this long before the thread sleeps.
inline constexpr std::chrono::nanoseconds kSchedulerSpin = 60us;
// With this many cores the thread has a core of its own while sessions take turns: it does not sleep at all, because a
// wake-up takes as long as the rest of a hand-over.
inline constexpr unsigned kSchedulerCoreMin = 8;
// The time between two polls of all pages in that case; the doorbells are polled all the time.
inline constexpr std::chrono::nanoseconds kSchedulerSpinLong = 250us;
// The longest wait for a worker to report its uncounted work in flight.
inline constexpr std::chrono::nanoseconds kAnswerTimeout = 100ms;
// No worker counts faster, because a submission takes a microsecond and more. The slack is for a session that has just
// begun.
inline constexpr std::chrono::nanoseconds kCountEvery = 50ns;
inline constexpr uint64_t kCountSlack = 1u << 16;
// The shortest time between two decisions, whatever the policy asks for.
inline constexpr std::chrono::nanoseconds kPollAgainMin = 10us;
// The interval at which time is charged without scheduling.
inline constexpr std::chrono::nanoseconds kSettleEvery = 100ms;
inline constexpr int kDoorbellsAtOnce = 64;
// The part of a limit at which the user is warned.
inline constexpr double kWarnAt = 0.8;
// The rate of a GPU's link to its host in one direction, shared by the sessions that are active on that GPU.
inline constexpr uint64_t kCopyBytesPerMs = 50'000'000;

// The executor of a session of class interactive or above stays awake for this long after a request, if the host has
// kSchedulerCoreMin cores and there are at most this part of them such sessions.
inline constexpr std::chrono::microseconds kPromptPoll = 10ms;
inline constexpr size_t kPromptPart = 4;

// Upper bounds of the histogram of drains, us.
inline constexpr std::array<double, 14> kDrainBoundsUs = {25,  50,   100,  150,  200,   250,    350,
                                                          500, 1000, 2500, 5000, 20000, 100000, 1000000};

}  // namespace gpuwire::server
