// Limits of the gate and the in-flight tracker, measured on an H200 (docs/scheduling_mechanism.md has the reasons).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace gpuwire::server {

using namespace std::chrono_literals;

// --- admission at the gate -----------------------------------------------------------------------------------------
inline constexpr std::chrono::nanoseconds kAlone =
    1ms;  // a kernel of this length or more runs without other work before or behind it
inline constexpr std::chrono::nanoseconds kShort = 125us;  // kernels up to this length may overlap under any bound
inline constexpr std::chrono::nanoseconds kOverlap =
    60us;  // a kernel over the bound is admitted when this much is left of the one before
inline constexpr std::chrono::nanoseconds kOverlapBoundMin =
    300us;  // not under a smaller bound: a higher class was active recently
inline constexpr uint64_t kLargeCopyBytes =
    1u << 20;  // the hardware executes larger copies over the host's link outside of compute slices
inline constexpr std::chrono::milliseconds kCopyBurst{16};  // of its budget that a session may use at once
// Work that waits for later submissions (a flag set by another stream's kernel, a stream memory operation) would never
// end while the bound delays those submissions. So without progress for this long, or for several times the expected
// duration of the work, the gate admits more work.
inline constexpr std::chrono::nanoseconds kStall = 50ms;
inline constexpr int kStallEstimates = 4;
inline constexpr unsigned kStallStepsMax = 20;  // each step admits twice as much as the one before

// --- estimates -----------------------------------------------------------------------------------------------------
inline constexpr size_t kEstimatesMax = 16 * 1024;  // beyond this number, all are learned again
inline constexpr double kEstimateShare = 0.25;      // of a new observation in the average
// The same for a shorter observation. A program's first observation may include another context's slices, or the
// kernel's loading; until the average has dropped, kernels run one at a time.
inline constexpr double kEstimateShareOfShorter = 0.5;
inline constexpr double kCopyBytesPerNs = 1000;  // inside the device
inline constexpr std::chrono::nanoseconds kCopyBase = 5us;

// --- marks ---------------------------------------------------------------------------------------------------------
inline constexpr size_t kMarksMax = 4096;  // of one context; one mark for the whole context covers further submissions
inline constexpr size_t kGateContextsMax =
    1024;  // contexts that are metered: more than any GPU has room for, at some 0.3 GiB each

// --- looking -------------------------------------------------------------------------------------------------------
inline constexpr std::chrono::nanoseconds kPoll =
    20us;  // between two polls of the marks while a bound is set or the gate closes
inline constexpr std::chrono::nanoseconds kPollCalm = 50us;  // while everything passes
inline constexpr unsigned kRestPolls = 40;  // before a session that is about to be suspended counts as busy
inline constexpr std::chrono::nanoseconds kPollLong =
    100us;  // the same for work that is not expected to be done soon, or is kAlone late
inline constexpr std::chrono::nanoseconds kPollAhead =
    120us;  // close polling begins this long before work is expected to be done
inline constexpr std::chrono::nanoseconds kSample = 10ms;  // in the free regime, on average
inline constexpr unsigned kSampleQuietMax =
    8;  // samples that found nothing, and the executor asleep; then the in-flight tracker sleeps too
inline constexpr std::chrono::nanoseconds kSamplePoll = 4us;  // the time until a mark on an idle device is done
inline constexpr std::chrono::nanoseconds kTailTimeout =
    1ms;  // for an executor that may be in the middle of an uncounted launch

// --- waiting -------------------------------------------------------------------------------------------------------
inline constexpr unsigned kGateSpinCoresMin = 4;
// A wake-up of a thread takes 50 to 300 us on a virtual machine, as long as a whole hand-over may take.
inline constexpr std::chrono::nanoseconds kGateSpin =
    300us;  // polling of a thread that has rung the doorbell, before it sleeps
inline constexpr std::chrono::nanoseconds kSoonSpin = 1ms;    // when the gate may open soon
inline constexpr std::chrono::nanoseconds kRoomSpin = 100us;  // the same at the bound
inline constexpr std::chrono::nanoseconds kDrainSpin =
    2ms;  // the in-flight tracker polls without sleeping for this long after the gate has closed
inline constexpr std::chrono::nanoseconds kGateSleep =
    50ms;  // the executor's longest sleep, in case of a missed wake-up
inline constexpr std::chrono::nanoseconds kParkedSleep =
    1s;  // the in-flight tracker's longest sleep, with nothing to poll

}  // namespace gpuwire::server
