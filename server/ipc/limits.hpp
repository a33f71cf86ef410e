// Bounds of what the server's processes say to each other.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuwire::server {

inline constexpr size_t kMessagesPerTurn = 64;  // of the broker's, before connections get their turn
// What a worker may say (MessageBudget).
inline constexpr size_t kWorkerMessagesPerTurn = 32;      // before everybody else gets a turn
inline constexpr double kWorkerMessagesPerSecond = 2000;  // for long
inline constexpr double kWorkerMessagesAtOnce = 4000;
inline constexpr uint32_t kWorkerPauseMs = 50;
inline constexpr unsigned kWorkerFullTurnsMax =
    16;  // pauses behind which there was a whole turn of messages again; then it is ended

}  // namespace gpuwire::server
