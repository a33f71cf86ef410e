// Bounds of a profile's measuring.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace gpuwire::server {

using namespace std::chrono_literals;

// The limit of pieces of work without times; further work is not timed.
inline constexpr size_t kTimedPendingMax = 8192;
// The limit of unsent spans; beyond it the times of further work are not queried yet.
inline constexpr size_t kSpansReadyMax = 4096;
inline constexpr size_t kSpansInNotice = 1024;
inline constexpr size_t kNamesInNoticeBytes = 64 * 1024;
inline constexpr size_t kProfiledNameBytesMax = 4096;       // longer ones are cut
inline constexpr size_t kProfiledNamesBytesMax = 16 << 20;  // of a whole session; further work shares one name
inline constexpr size_t kTimedContextsMax = 1024;
inline constexpr size_t kTimedLanesKept = 64;  // of streams without work, in a context

inline constexpr std::chrono::nanoseconds kProfilerPoll = 1ms;  // between two polls while work is pending
inline constexpr size_t kProfilerPollSpans = 64;                // queried with the lock held
inline constexpr std::chrono::nanoseconds kSpansHeld = 20ms;    // spans wait this long for more to be sent with them
// For work that still runs, when the client asks for the end.
inline constexpr std::chrono::nanoseconds kProfilerEndWait = 2s;

// An anchor is an event whose time by the clock is known. cuEventElapsedTime returns a number of 24 bits: more than 16
// s after its anchor, a time is less precise than a microsecond.
inline constexpr std::chrono::nanoseconds kAnchorAge = 1s;      // then the next anchor is recorded
inline constexpr std::chrono::nanoseconds kAnchorAgeMax = 8s;   // then the next anchor is used, whatever its precision
inline constexpr std::chrono::nanoseconds kAnchorSpin = 100us;  // the executor polls it for this long
inline constexpr std::chrono::nanoseconds kAnchorErrorMax = 50us;  // a more precise anchor is kept until it is too old

// Limits for CUPTI. A launch takes some 300 bytes of a buffer (the records of its kernel, its call and their
// correlation).
inline constexpr size_t kCuptiBufferBytes = 256 * 1024;
inline constexpr size_t kCuptiBuffersMax = 64;               // then CUPTI drops records
inline constexpr size_t kCuptiDeviceBuffersMax = 8;          // of 3 MB of the GPU's memory, for 100,000 times each
inline constexpr size_t kCuptiGivenMax = 64 * 1024;          // pieces of work whose records are assigned to the session
inline constexpr size_t kCuptiEarlyMax = 16 * 1024;          // records that are not assigned to work yet
inline constexpr std::chrono::nanoseconds kCuptiAsk = 50ms;  // between two requests for its records
inline constexpr std::chrono::nanoseconds kCuptiIdlePoll = 200ms;  // for buffers that contain records of other calls
inline constexpr std::chrono::nanoseconds kCuptiClockSlack = 1s;   // a time with a larger error counts as unknown

}  // namespace gpuwire::server
