// Bounds of the gate and the in-flight tracker. Measured on an H200 (docs/scheduling.md has the reasoning).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace gpuwire::server {

using namespace std::chrono_literals;

// --- admission at the gate -----------------------------------------------------------------------------------------
inline constexpr std::chrono::nanoseconds kAlone =
    1ms;  // a kernel of this length and more goes with nothing before or behind it
inline constexpr std::chrono::nanoseconds kShort = 125us;  // kernels up to here may overlap under any bound
inline constexpr std::chrono::nanoseconds kOverlap =
    60us;  // a kernel over the bound goes in when so little is left of the one before: no gap
inline constexpr std::chrono::nanoseconds kOverlapBoundMin =
    300us;  // under a smaller bound it does not: a higher class is near
inline constexpr uint64_t kLargeCopyBytes =
    1u << 20;  // from here on a copy over the host's link is not held up by the compute slice
inline constexpr std::chrono::milliseconds kCopyBurst{16};  // of its budget, which a session may use at once
// Work that waits for later submissions (a flag set by another stream's kernel, a stream memory operation) would never
// end while the bound holds those back. So without progress for this long, or for several times the expected duration
// of the work, more is admitted.
inline constexpr std::chrono::nanoseconds kStall = 50ms;
inline constexpr int kStallEstimates = 4;
inline constexpr unsigned kStallStepsMax = 20;  // each lets in twice as much as the one before

// --- estimates -----------------------------------------------------------------------------------------------------
inline constexpr size_t kEstimatesMax = 16 * 1024;  // past them, all are learned anew
inline constexpr double kEstimateShare = 0.25;      // of a new observation in the average
// The same where it is shorter. The first of a program may include another context's slices, or the kernel's loading;
// until that is forgotten, one kernel goes at a time.
inline constexpr double kEstimateShareOfShorter = 0.5;
inline constexpr double kCopyBytesPerNs = 1000;  // inside the device
inline constexpr std::chrono::nanoseconds kCopyBase = 5us;

// --- marks ---------------------------------------------------------------------------------------------------------
inline constexpr size_t kMarksMax =
    4096;  // of one context; submissions beyond them are covered by one mark of everything
inline constexpr size_t kGateContextsMax =
    1024;  // contexts that are metered: more than any GPU has room for, at some 0.3 GiB each

// --- looking -------------------------------------------------------------------------------------------------------
inline constexpr std::chrono::nanoseconds kPoll =
    20us;  // between two looks at the marks while a bound is set or the gate closes
inline constexpr std::chrono::nanoseconds kPollCalm = 50us;  // while everything passes
inline constexpr std::chrono::nanoseconds kPollLong =
    100us;  // at work that is not expected to be done soon, or is kAlone late
inline constexpr std::chrono::nanoseconds kPollAhead =
    120us;  // before something is expected to be done, it is looked for closely
inline constexpr std::chrono::nanoseconds kSample = 10ms;  // in the free regime, on average
inline constexpr unsigned kSampleQuietMax =
    8;  // samples that found nothing, and the executor asleep; then the in-flight tracker sleeps too
inline constexpr std::chrono::nanoseconds kSamplePoll = 4us;  // how soon a mark on an idle device is done
inline constexpr std::chrono::nanoseconds kTailTimeout =
    1ms;  // for an executor that may be in the middle of a launch which nobody has counted

// --- waiting -------------------------------------------------------------------------------------------------------
inline constexpr unsigned kGateSpinCoresMin = 4;
// A wake-up of a thread takes 50 to 300 us on a virtual machine, as long as a whole hand-over may take.
inline constexpr std::chrono::nanoseconds kGateSpin = 300us;  // before a thread that has knocked sleeps
inline constexpr std::chrono::nanoseconds kSoonSpin = 1ms;    // when the gate may open soon
inline constexpr std::chrono::nanoseconds kRoomSpin = 100us;  // the same at the bound
inline constexpr std::chrono::nanoseconds kDrainSpin =
    2ms;  // the in-flight tracker polls without sleeping for this long after the gate has closed
inline constexpr std::chrono::nanoseconds kGateSleep = 50ms;  // the executor's is never longer, whatever was missed
inline constexpr std::chrono::nanoseconds kParkedSleep = 1s;  // the in-flight tracker's, with nothing to look at

}  // namespace gpuwire::server
