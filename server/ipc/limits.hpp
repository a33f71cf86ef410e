// Bounds of the messages between the server's processes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuwire::server::ipc {

inline constexpr size_t kPacketBytesMax = 32 * 1024;  // a message with all fields at their largest sizes
inline constexpr size_t kDescriptorsMax = 8;          // with one message
// The sender cuts longer texts, and the receiver refuses them.
inline constexpr size_t kTextBytesMax = 4096;  // a reason; a line for the log
inline constexpr size_t kNameBytesMax = 512;
inline constexpr size_t kToldBytesMax = 16 * 1024;  // of a part of an answer to a query
inline constexpr size_t kDeviceNameBytesMax = 96;
inline constexpr size_t kEntryNameBytesMax = 1024;
inline constexpr size_t kEntryTextBytesMax = 16 * 1024;
inline constexpr size_t kDevicesMax = 64;

inline constexpr size_t kTlsKeyBytes = 32;
inline constexpr size_t kWireIdBytes = 16;
inline constexpr size_t kKeeperKeyBytes = 32;

inline constexpr size_t kRequestedMax = 32 * 1024;  // connections that the login process has announced and not returned

// The limits of queued messages; a channel with a full queue accepts no more.
inline constexpr size_t kWorkerWaitingMax = 256;  // either way between the broker and a worker
// Answers for all callers that may wait at the login process, and incoming messages.
inline constexpr size_t kAuthWaitingMax = 64 * 1024;
inline constexpr size_t kKeeperWaitingMax = 64 * 1024;  // entries of all sessions, and their changes
inline constexpr size_t kMessagesPerTurn = 32;          // messages that are read from one end before others get a turn

// More messages than the kernel queues in a pair.
inline constexpr size_t kUnreadMessagesMax = 16 * 1024;

// The limits of a worker's messages (MessageBudget).
inline constexpr double kBudgetPerSecond = 2000;  // for long
inline constexpr double kBudgetAtOnce = 4000;
inline constexpr uint32_t kBudgetPauseMs = 50;
inline constexpr unsigned kFullTurnsMax = 16;  // pauses after which a whole turn of messages waits; then it floods

}  // namespace gpuwire::server::ipc
