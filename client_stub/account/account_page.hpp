// The counters of `--stats` of one process, in memory that outlives the process, however it ends.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace gpuwire::client {

enum class AccountDepth : uint32_t { none, summary, calls, why };

// GPUWIRE_STATS: "calls" adds a table of functions, "why" prints advice instead; any other value but "" and "0" prints
// the summary.
AccountDepth account_depth(const char* value) noexcept;

// More than twice the number of exported names, so that a search is short. A function without a slot is counted with
// the calls without a name.
inline constexpr size_t kFunctionsMax = 2048;
inline constexpr size_t kAccountNameBytes = 64;   // of functions, programs and devices; longer ones are cut
inline constexpr size_t kServerTextBytes = 256;   // likewise
inline constexpr size_t kAccountDevicesMax = 16;  // that are named
inline constexpr uint64_t kAccountMagic = 0x32544341'57555047;  // "GPUWACT2": layouts of other releases have another

// Texts end at the first zero, or with their array.
struct FunctionCosts {
  // The address of the name in the process that counts; 0: free.
  uint64_t key;
  // `name` is complete. Stored with release, read with acquire.
  uint64_t named;
  char name[kAccountNameBytes];
  uint64_t calls, waits, wait_ns, ns, sent, received, stalls;
  // The part of `waits` that copies with a side in pageable memory cause.
  uint64_t pageable_waits;
};

// The session's counters at the end of the latest call.
struct SessionCounts {
  uint64_t waits, wait_ns, bytes_sent, bytes_received, flushes;
  uint64_t losses, detached_ns, bytes_sent_again;
  uint64_t lanes_opened, lanes_in_use, lane_bytes;
  uint64_t chunk_bytes_asked, chunk_bytes_found;
  // Bytes.
  uint64_t staged_to_device, staged_from_device;
  uint64_t images_used, images_sent, image_bytes_sent;
};

// Plain data in memory that the process shares with `gpuwire run`, which reads a copy after the process has ended.
// Several threads count by the functions below. All zero: no count yet.
struct AccountPage {
  uint64_t magic;
  // The process has printed its account by itself.
  uint64_t told;
  AccountDepth depth;
  uint32_t device_count;
  int64_t process_id;
  // CLOCK_MONOTONIC.
  uint64_t started_ns;
  char program[kAccountNameBytes];
  char server[kServerTextBytes];
  char devices[kAccountDevicesMax][kAccountNameBytes];
  // Calls: local, posted, called.
  uint64_t by_class[3];
  SessionCounts session;
  FunctionCosts functions[kFunctionsMax];
};
static_assert(std::is_trivially_copyable_v<AccountPage>);

// Relaxed: each counter is independent. Any thread.
inline void count(uint64_t& counter, uint64_t by) noexcept {
  if (by) std::atomic_ref(counter).fetch_add(by, std::memory_order_relaxed);
}
// Precondition: the value only grows. A thread with an older reading does not overwrite a newer one.
inline void raise_to(uint64_t& counter, uint64_t value) noexcept {
  std::atomic_ref shared(counter);
  uint64_t there = shared.load(std::memory_order_relaxed);
  while (there < value && !shared.compare_exchange_weak(there, value, std::memory_order_relaxed)) {}
}

// Returns the costs of a function, whose name must live as long as the process. Null: too many functions. Thread: any.
// Lock: none.
FunctionCosts* costs_of(AccountPage& page, const char* name) noexcept;

void put_text(char* text, size_t bytes, std::string_view value) noexcept;
std::string_view text_of(const char* text, size_t bytes) noexcept;

}  // namespace gpuwire::client
