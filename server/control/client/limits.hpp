// Bounds of the control socket.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuwire::server {

inline constexpr size_t kControlRequestBytesMax = 4096;     // one line
inline constexpr size_t kControlConnectionsMax = 64;        // one more closes the oldest
inline constexpr size_t kControlConnectionsOthersMax = 16;  // of these, for users who may see their own tenant only
inline constexpr size_t kControlConnectionsPerUserMax = 4;  // of each such user
inline constexpr uint32_t kControlIdleMs = 60'000;          // between two requests
inline constexpr uint32_t kControlWriteMs = 10'000;         // for a peer to read an answer
inline constexpr uint32_t kControlAcceptRetryMs = 100;      // after accept() failed
inline constexpr uint32_t kWatchIntervalMinMs = 100, kWatchIntervalMaxMs = 3'600'000, kWatchIntervalMs = 1000;
inline constexpr size_t kControlReasonBytesMax = 200;
inline constexpr size_t kControlAnswerBytesMax = 64u << 20;  // the longest answer that a command accepts from a server
inline constexpr uint32_t kControlAnswerMs = 10'000;         // how long a command waits for an answer
// The same for an answer that has to wait for moves of device memory, on both sides.
inline constexpr uint32_t kControlLaterMs = 1'800'000;

}  // namespace gpuwire::server
