// Bounds of one session's process.
#pragma once

#include <cstddef>
#include <cstdint>

#include "protocol/wire/limits.hpp"

namespace gpuwire::server {

// --- waiting -------------------------------------------------------------------------------------------------------
// A sleeping thread is woken 50 to 300 us late on a virtual machine, and every thread that an answer passes adds its
// own delay. A local program spins in its synchronising calls (CUDA's default), so a server with enough cores does the
// same here.
struct SpinPolicy {
  // The executor polls a synchronisation for this long, then a waiter takes it.
  uint32_t wait_poll_us;
  // The executor polls its socket for this long after the last frame, then sleeps in poll().
  uint32_t socket_spin_us;
  // The watcher polls events without sleeping for this long after a new one is watched.
  uint32_t watch_spin_us;
};
// With fewer cores than this, spinning takes time from the client itself.
inline constexpr unsigned kSpinCoresMin = 3;
inline constexpr unsigned kLongSpinCoresMin = 8;
inline constexpr SpinPolicy kNoSpin{0, 0, 0}, kShortSpin{40, 80, 30}, kLongSpin{20'000, 200, 30};
// Threads in waiting driver calls. The watcher takes further waits for events.
inline constexpr unsigned kWaitersMax = 64;
// All waiter threads, including those for calls that only the driver can wait for. One more ends the session.
inline constexpr unsigned kBlockedWaitersMax = 1024;
// The events that are watched at once.
inline constexpr size_t kWatchedMax = 64 * 1024;
inline constexpr uint32_t kWatchSleepMinUs = 20;
inline constexpr uint32_t kWatchSleepMaxUs = 500;

// --- the connection ------------------------------------------------------------------------------------------------
// The size of one read. No more than this of a bulk is copied twice.
inline constexpr size_t kReadBytes = 64u << 10;
// The bulk of replies and notices that stays in staging until the client has acknowledged it.
inline constexpr size_t kReplyBulkBytesMax = 128u << 20;
// Longer bulk of replies is sent from its keeper's memory without a copy.
inline constexpr size_t kInlineBulkBytesMax = 16u << 10;
// The part of the window's ring for the thread that must not wait for room (OutOfOrderReader).
inline constexpr size_t kReadAheadReserveBytes = 1u << 20;
// A thread that waits for room checks again after this long, although it is notified.
inline constexpr uint32_t kRoomPollMs = 100;
// A client that reads nothing for this long counts as lost.
inline constexpr uint32_t kPeerStallMs = 30'000;

// --- reading for the executor while it is kept in a call that may wait for an answer of the client -----------------
// The interval of the reader's checks. After one to two of them in one call, the reader reads in the executor's place.
inline constexpr uint32_t kOutOfOrderReaderTickUs = 200;
// After this many checks without an awaited answer the thread sleeps.
inline constexpr unsigned kOutOfOrderReaderQuietTicks = 50;
inline constexpr size_t kOutOfTurnBulkBytesMax = wire::kRegionPieceBytes;
// The bound of bytes stored for the executor: all that a client may send without an acknowledgement.
inline constexpr size_t kKeptBytesMax = wire::kSendWindowBytes + wire::kBulkWindowBytes;

// The bytes that are read and stored while the executor is in one call for longer than a check interval, so that the
// connection's end behind them is seen. More than a client's unacknowledged frames (kSendWindowBytes) and the buffers
// of both systems; less than its copies, which count for the tenant.
inline constexpr uint32_t kExecutorPollMs = 1000;
inline constexpr size_t kKeptWhileBusyBytesMax = 64u << 20;

// --- another connection --------------------------------------------------------------------------------------------
// The connections that are being proved at once; more are dropped.
inline constexpr size_t kResumesMax = 4;

// --- the end -------------------------------------------------------------------------------------------------------
// The time from the client's or the broker's end to the worker's own, whatever the driver is doing.
inline constexpr uint32_t kEndGraceMs = 800;
// The longest wait until the broker has read the session's last report.
inline constexpr uint32_t kLastWordMs = 300;
// The longest wait until the client has read the Ending notice.
inline constexpr uint32_t kEndingNoticeMs = 200;

// The text of device printf in one notice.
inline constexpr size_t kOutputPieceBytes = 32u << 10;
inline constexpr int kOutputPipeBytes = 1 << 20;
// The longest wait of the executor for the broker's answer about shared objects.
inline constexpr uint32_t kShareAnswerMs = 2000;

}  // namespace gpuwire::server
