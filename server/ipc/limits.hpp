// Bounds of the messages between the server's processes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuwire::server::ipc {

inline constexpr size_t kPacketBytesMax = 32 * 1024;  // a message with everything in it at its longest
inline constexpr size_t kDescriptorsMax = 8;          // with one message
// Longer ones are cut when they are sent, and refused when they come.
inline constexpr size_t kTextBytesMax = 4096;  // why something is so; a line for the log
inline constexpr size_t kNameBytesMax = 512;
inline constexpr size_t kToldBytesMax = 16 * 1024;  // of a part of an answer to a query
inline constexpr size_t kDeviceNameBytesMax = 96;
inline constexpr size_t kEntryNameBytesMax = 1024;
inline constexpr size_t kEntryTextBytesMax = 16 * 1024;
inline constexpr size_t kDevicesMax = 64;

inline constexpr size_t kTlsKeyBytes = 32;
inline constexpr size_t kWireIdBytes = 16;
inline constexpr size_t kKeeperKeyBytes = 32;

inline constexpr size_t kRequestedMax =
    32 * 1024;  // connections that the auth server has announced, and has not given back

// Messages that wait for the other end to read; a channel of which more would wait takes no more.
inline constexpr size_t kWorkerWaitingMax = 256;  // either way between the broker and a worker
inline constexpr size_t kAuthWaitingMax =
    64 * 1024;  // answers for all that may wait at the auth server, and incoming messages
inline constexpr size_t kKeeperWaitingMax = 64 * 1024;  // entries of all sessions, and their changes
inline constexpr size_t kMessagesPerTurn = 32;  // messages that are read from one end before all others get a turn

// More than the kernel lets stand in a pair.
inline constexpr size_t kUnreadMessagesMax = 16 * 1024;

// The messages that a worker may send (MessageBudget).
inline constexpr double kBudgetPerSecond = 2000;  // for long
inline constexpr double kBudgetAtOnce = 4000;
inline constexpr uint32_t kBudgetPauseMs = 50;
inline constexpr unsigned kFullTurnsMax =
    16;  // pauses behind which there was a whole turn of messages again; then it floods

}  // namespace gpuwire::server::ipc
