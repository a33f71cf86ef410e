// A worker's counters of its connection, in memory that the broker reads (the session's page).
#pragma once

#include <atomic>
#include <cstdint>

namespace gpuwire::server {

// Each word has one writer, in the worker; the broker shows them. Each word is independent, so all accesses are
// relaxed. A worker can write anything here, so the figures are only displayed and influence no decision.
struct alignas(64) LinkCounters {
  // From the client, frames and bulk.
  std::atomic<uint64_t> bytes_in{0};
  std::atomic<uint64_t> bytes_out{0};
  // A thread of the program has waited for each of these.
  std::atomic<uint64_t> replies{0};
  // The kernel's smoothed one; 0: not known (a Unix socket).
  std::atomic<uint32_t> round_trip_us{0};
  std::atomic<uint32_t> round_trip_least_us{0};
  // The chunks that the client did not have to send.
  std::atomic<uint64_t> chunks_found{0};
  // The bytes in these chunks.
  std::atomic<uint64_t> chunk_bytes_found{0};
  // The bytes that were written to the tenant's chunk store.
  std::atomic<uint64_t> chunk_bytes_kept{0};
};
static_assert(sizeof(LinkCounters) == 64);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace gpuwire::server
