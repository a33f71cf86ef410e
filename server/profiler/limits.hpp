// Bounds of a profile's measuring.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace gpuwire::server {

using namespace std::chrono_literals;

// Pieces of work whose times are not known yet; work beyond this is not timed.
inline constexpr size_t kTimedPendingMax = 8192;
// Spans that wait to be sent; work past them is not asked for its times yet.
inline constexpr size_t kSpansReadyMax = 4096;
inline constexpr size_t kSpansInNotice = 1024;
inline constexpr size_t kNamesInNoticeBytes = 64 * 1024;
inline constexpr size_t kProfiledNameBytesMax = 4096;       // longer ones are cut
inline constexpr size_t kProfiledNamesBytesMax = 16 << 20;  // all of a session; work past them has a name in common
inline constexpr size_t kTimedContextsMax = 1024;
inline constexpr size_t kTimedLanesKept = 64;  // of streams without work, in a context

inline constexpr std::chrono::nanoseconds kProfilerPoll = 1ms;  // between two looks while work is pending
inline constexpr size_t kProfilerPollSpans = 64;                // asked for with the lock held
inline constexpr std::chrono::nanoseconds kSpansHeld = 20ms;    // spans wait this long for more to be sent with them
// For work that still runs, when the client asks for the end.
inline constexpr std::chrono::nanoseconds kProfilerEndWait = 2s;

// An anchor is an event whose time on the GPU is known. cuEventElapsedTime returns a number of 24 bits: past 16 s from
// its anchor a time is not known to the microsecond any more.
inline constexpr std::chrono::nanoseconds kAnchorAge = 1s;         // then the next one is made
inline constexpr std::chrono::nanoseconds kAnchorAgeMax = 8s;      // then the next one is taken, however it was seen
inline constexpr std::chrono::nanoseconds kAnchorSpin = 100us;     // the executor polls it for this long
inline constexpr std::chrono::nanoseconds kAnchorErrorMax = 50us;  // a better-known one is kept until it is too old

// Where CUPTI measures. A launch takes some 300 bytes of a buffer (its kernel, its call and the correlation of both).
inline constexpr size_t kCuptiBufferBytes = 256 * 1024;
inline constexpr size_t kCuptiBuffersMax = 64;               // then CUPTI drops records
inline constexpr size_t kCuptiDeviceBuffersMax = 8;          // of 3 MB of the GPU's memory, for 100,000 times each
inline constexpr size_t kCuptiGivenMax = 64 * 1024;          // pieces of work whose records are known as the session's
inline constexpr size_t kCuptiEarlyMax = 16 * 1024;          // records of work of which it is not known whose it is
inline constexpr std::chrono::nanoseconds kCuptiAsk = 50ms;  // between two requests for its records
inline constexpr std::chrono::nanoseconds kCuptiIdlePoll = 200ms;  // for buffers that it has filled with other calls
inline constexpr std::chrono::nanoseconds kCuptiClockSlack = 1s;   // times that are wrong by more are none

}  // namespace gpuwire::server
