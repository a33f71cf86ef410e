// What a program's calls cost, by function: counted while GPUWIRE_STATS asks for it, printed when the program ends.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>

#include "client_stub/driver/call/entry.hpp"
#include "client_stub/session/session.hpp"

namespace gpuwire::client {

struct Process;

enum class AccountDepth : uint8_t { none, summary, calls, why };

// GPUWIRE_STATS: "calls" for a table of functions too, "why" for advice in place of all that, anything else but "" and
// "0" for the summary.
AccountDepth account_depth(const char* value) noexcept;

// Program images that the process used, and those that had to be sent. Relaxed: read when the program ends.
struct ImageTraffic {
  std::atomic<uint64_t> used{0}, sent{0}, sent_bytes{0};
};
ImageTraffic& image_traffic() noexcept;

// The calling thread's call has a side in memory of the program that is not pinned.
extern thread_local constinit bool t_pageable __attribute__((tls_model("initial-exec")));
inline void note_pageable_memory() noexcept { t_pageable = true; }

// One call of one function. `name` is a string that lives as long as the program. Any thread; takes no lock.
void account_call(const char* name, CallClass call_class, const ThreadTraffic& before, const ThreadTraffic& after,
                  uint64_t ns) noexcept;

// Asks the server where the session's time went there, for AccountDepth::why; while the session lives. Some round
// trips.
void ask_server_account(Session& session, AccountDepth depth) noexcept;

// The account on standard error. `elapsed_ns`: since the stub was loaded.
void print_account(const Process& process, AccountDepth depth, uint64_t elapsed_ns) noexcept;

}  // namespace gpuwire::client
