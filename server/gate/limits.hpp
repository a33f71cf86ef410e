// Limits of the gate and the in-flight tracker, measured on an H200 (docs/scheduling_mechanism.md has the reasons).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace gpuwire::server {

using namespace std::chrono_literals;

// --- admission at the gate -----------------------------------------------------------------------------------------
// A kernel of this length or more runs without other work before or behind it.
inline constexpr std::chrono::nanoseconds kAlone = 1ms;
// Kernels up to this length may overlap under any bound.
inline constexpr std::chrono::nanoseconds kShort = 125us;
// A kernel over the bound is admitted when this much is left of the kernel before it.
inline constexpr std::chrono::nanoseconds kOverlap = 60us;
// No overlap under a smaller bound, because a higher class was active recently.
inline constexpr std::chrono::nanoseconds kOverlapBoundMin = 300us;
// The hardware executes larger copies over the host's link outside of compute slices.
inline constexpr uint64_t kLargeCopyBytes = 1u << 20;
// The part of its budget of copies that a session may use at once.
inline constexpr std::chrono::milliseconds kCopyBurst{16};
// Work that waits for later submissions (a flag set by another stream's kernel, a stream memory operation) would never
// end while the bound delays those submissions. So without progress for this long, or for several times the expected
// duration of the work, the gate admits more work.
inline constexpr std::chrono::nanoseconds kStall = 50ms;
inline constexpr int kStallEstimates = 4;
// Each step admits twice as much as the one before.
inline constexpr unsigned kStallStepsMax = 20;

// --- estimates -----------------------------------------------------------------------------------------------------
// Beyond this number, all estimates are learned again.
inline constexpr size_t kEstimatesMax = 16 * 1024;
// The share of a new observation in the average.
inline constexpr double kEstimateShare = 0.25;
// The same for a shorter observation. A program's first observation may include another context's slices, or the
// kernel's loading; until the average has dropped, kernels run one at a time.
inline constexpr double kEstimateShareOfShorter = 0.5;
// The rate of copies inside the device.
inline constexpr double kCopyBytesPerNs = 1000;
inline constexpr std::chrono::nanoseconds kCopyBase = 5us;

// --- marks ---------------------------------------------------------------------------------------------------------
// The marks of one context. One mark for the whole context covers further submissions.
inline constexpr size_t kMarksMax = 4096;
// The contexts that are metered: more than any GPU has room for, at some 0.3 GiB each.
inline constexpr size_t kGateContextsMax = 1024;

// --- polling -------------------------------------------------------------------------------------------------------
// The time between two polls of the marks while a bound is set or the gate closes.
inline constexpr std::chrono::nanoseconds kPoll = 20us;
// The same time while the gate passes everything.
inline constexpr std::chrono::nanoseconds kPollCalm = 50us;
// The polls before a session that is about to be suspended counts as busy.
inline constexpr unsigned kRestPolls = 40;
// The same time for work that is not expected to be done soon, or is kAlone late.
inline constexpr std::chrono::nanoseconds kPollLong = 100us;
// Close polling begins this long before work is expected to be done.
inline constexpr std::chrono::nanoseconds kPollAhead = 120us;
// The average time between two samples in the free regime.
inline constexpr std::chrono::nanoseconds kSample = 10ms;
// After this many samples that found nothing, with the executor asleep, the in-flight tracker sleeps, too.
inline constexpr unsigned kSampleQuietMax = 8;
// The time until a mark on an idle device is done.
inline constexpr std::chrono::nanoseconds kSamplePoll = 4us;
// The longest wait for an executor that may be in the middle of an uncounted launch.
inline constexpr std::chrono::nanoseconds kTailTimeout = 1ms;

// --- waiting -------------------------------------------------------------------------------------------------------
inline constexpr unsigned kGateSpinCoresMin = 4;
// A wake-up of a thread takes 50 to 300 us on a virtual machine, as long as a whole hand-over may take.
// The time for which a thread that has rung the doorbell polls before it sleeps.
inline constexpr std::chrono::nanoseconds kGateSpin = 300us;
// The same time when the gate may open soon.
inline constexpr std::chrono::nanoseconds kSoonSpin = 1ms;
// The same time at the bound.
inline constexpr std::chrono::nanoseconds kRoomSpin = 100us;
// The in-flight tracker polls without sleeping for this long after the gate has closed.
inline constexpr std::chrono::nanoseconds kDrainSpin = 2ms;
// The executor's longest sleep, in case of a missed wake-up.
inline constexpr std::chrono::nanoseconds kGateSleep = 50ms;
// The in-flight tracker's longest sleep, with nothing to poll.
inline constexpr std::chrono::nanoseconds kParkedSleep = 1s;

}  // namespace gpuwire::server
