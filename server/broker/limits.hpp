// Bounds of the broker.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuwire::server {

inline constexpr size_t kHalfOpenMax = 128;         // connections whose preface is still awaited, or that are being refused
inline constexpr size_t kHalfOpenPerAddressMax = 64;  // of these, from one address
inline constexpr size_t kLoginBacklogMax = 256;     // messages that the login process has not taken; connections beyond are refused
inline constexpr uint32_t kLoginLivedMs = 1000;     // a login process that lived so long is started again at once
inline constexpr uint32_t kLoginExitMs = 1500;      // from the broker's end until it is killed
inline constexpr uint32_t kLoginAuditsPerSecondMax = 50;  // refusals of one kind that are told one by one; more are counted
inline constexpr uint32_t kAcceptRetryMs = 100;     // after accept() failed
inline constexpr uint32_t kRefusalLingerMs = 1000;  // for a refused client to read why
inline constexpr uint32_t kWorkerStartMs = 60'000;  // a driver with many devices takes seconds to initialise
inline constexpr uint32_t kWorkerWaitMs = 20'000;   // how long an accepted client waits for a worker
inline constexpr uint32_t kWorkerExitMs = 1500;     // from a worker's last message, or a stop, until it is killed
inline constexpr unsigned kStartAttemptsMax = 4;    // failed starts in a row before clients are refused
inline constexpr uint32_t kRestartDelayMinMs = 100, kRestartDelayMaxMs = 5000;
inline constexpr uint32_t kQueueLookMs = 500;       // while somebody waits: how often it is looked whether running sessions have freed memory
inline constexpr unsigned kSpareWorkersMax = 64;
inline constexpr size_t kSharesPerSessionMax = 1024, kSharesMax = 8192;  // descriptors kept for sessions to share

}  // namespace gpuwire::server
