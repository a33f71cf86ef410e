// The tenant page: memory that the broker shares with all workers of one tenant, and with nobody else. The page has the
// memory of each session, and the allowance of all sessions together. README.md names the writer of each word and
// explains why no order of events exceeds the allowance.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "server/base/shared_page.hpp"

namespace gpuwire::server {

inline constexpr uint32_t kPageDevicesMax = 64;
inline constexpr uint32_t kPageSlotsMax = 256;  // the bound of a tenant's sessions, including kLeftSlot
inline constexpr uint32_t kLeftSlot = 0;        // the broker's own: memory of ended sessions that others still hold
inline constexpr uint32_t kHostColumn = kPageDevicesMax;  // host memory of the server
inline constexpr uint32_t kPageColumns = kPageDevicesMax + 1;
// The bound of a page's figures; a larger figure counts as this.
inline constexpr uint64_t kPageBytesMax = uint64_t{1} << 48;

// The column of a device of the server, or of its host memory. In bytes.
struct PageColumn {
  // Written by the broker.
  // The sessions' memory (held_by_all) never exceeds it.
  std::atomic<uint64_t> allowance;
  // The tenant's; the allowance may be raised up to it.
  std::atomic<uint64_t> limit;
  // The value up to which the allowance could be raised now; a hint.
  std::atomic<uint64_t> reach;
  // The memory of a context itself.
  std::atomic<uint64_t> context_bytes;
  // The reservation of each session, written before its worker knows its slot and until the session ends.
  alignas(64) std::atomic<uint64_t> reserved[kPageSlotsMax];
  // Each word is written by one session's worker; the broker zeroes it when the worker has ended.
  alignas(64) std::atomic<uint64_t> used[kPageSlotsMax];
  // The maximum of `used`.
  std::atomic<uint64_t> peak[kPageSlotsMax];
  // The part of `used` that other sessions may hold beyond the session's end.
  std::atomic<uint64_t> shared[kPageSlotsMax];
  // The memory of each suspended session that the device does not have; 0: the session is not suspended. Written by the
  // broker.
  alignas(64) std::atomic<uint64_t> away[kPageSlotsMax];
};

struct PageSlot {
  // Scheduler::SessionId; 0: free. Written by the broker.
  std::atomic<uint64_t> session;
  // As reported by the client. Written by the broker.
  std::atomic<uint32_t> client_pid;
  // Written by the session's worker.
  // 1: has imported memory of another session.
  std::atomic<uint32_t> imports;
  // 1: its client may briefly cache memory that its program has freed.
  std::atomic<uint32_t> keeps;
  // The time until which the session's client may hold prefetched memory, as page_seconds() counts; 0: it never did.
  // The field uses former padding: a worker of an earlier build leaves it at 0.
  std::atomic<uint32_t> ahead_until_s;
};
static_assert(sizeof(PageSlot) == 24);

struct TenantPage {
  // "tntpage1".
  static constexpr uint64_t kMagic = 0x3165'6761'7074'6e74;
  static constexpr uint32_t kVersion = 4;
  static constexpr const char* kName = "tenant page";

  PageHead head;
  // 0, or 1 + the slot whose worker is reserving.
  alignas(64) std::atomic<uint32_t> turn;
  // slots from this number on were never used. Written by the broker; never decreases
  alignas(64) std::atomic<uint32_t> slots;
  alignas(64) PageSlot slot[kPageSlotsMax];
  alignas(64) PageColumn column[kPageColumns];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);
static_assert(sizeof(TenantPage) < 1u << 20);

// The broker's private state of a tenant's allowances, which the next broker needs: memory that outlives the process,
// and that no worker ever sees.
struct AllowancePage {
  // "allpage1".
  static constexpr uint64_t kMagic = 0x3165'6761'706c'6c61;
  static constexpr uint32_t kVersion = 1;
  static constexpr const char* kName = "allowances of a tenant";

  PageHead head;
  uint64_t bytes[kPageDevicesMax];
};

// Bounds a figure from a page. Every figure is read through this function, since other processes write the page.
inline uint64_t bounded(uint64_t bytes) { return bytes < kPageBytesMax ? bytes : kPageBytesMax; }

// A client may hold prefetched memory of earlier runs for this long: kProfiledTime
// (client_stub/driver/state/memory/cached_memory.hpp), and the way there and back.
inline constexpr std::chrono::seconds kAheadHeld{3};
// Seconds of the machine's monotonic clock, rounded up: the same for all processes.
uint32_t page_seconds();
// Returns the time, from `now_s` on, for which clients of sessions in slots other than `but` may hold prefetched
// memory; at most kAheadHeld. 0: no client does.
std::chrono::seconds held_ahead(const TenantPage& page, uint32_t but, uint32_t now_s);

// The bytes without those that are away.
inline uint64_t present(uint64_t bytes, uint64_t away) { return bytes > away ? bytes - away : 0; }

// The used memory of all sessions of the tenant in a column, at most kPageBytesMax. Memory that is away does not count,
// here and below.
uint64_t used_by_all(const TenantPage& page, uint32_t column);

// The reservation for the session of each slot, in a column.
using ReservedBytes = std::array<uint64_t, kPageSlotsMax>;
// The held memory of all sessions: for each its reservation, or its used memory if that is more. At most kPageBytesMax.
// The first function takes the reservations from the page, the second uses the broker's own.
uint64_t held_by_all(const TenantPage& page, uint32_t column);
uint64_t held_by_all(const TenantPage& page, uint32_t column, const ReservedBytes& reserved);

// Lowers the allowance to `target`, or to the held memory if that is more. Returns the new allowance. Broker only.
uint64_t lower_allowance(TenantPage& page, uint32_t column, uint64_t target, const ReservedBytes& reserved);
// Zeroes the slot and ends its turn. Memory that others may still hold moves to kLeftSlot. Broker only. Precondition:
// the slot's worker has ended.
void clear_slot(TenantPage& page, uint32_t slot);

}  // namespace gpuwire::server
