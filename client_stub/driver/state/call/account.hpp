// The costs of a program's calls, by function: counted if GPUWIRE_STATS requests it, and printed at the program's end,
// by the program itself or, if it cannot print, by the watch of `gpuwire run`.
#pragma once

#include <atomic>
#include <cstdint>

#include "client_stub/driver/process/call_class.hpp"
#include "client_stub/session/session.hpp"

namespace gpuwire::client {

struct Process;

// Program images that the process used, and images that it sent. Relaxed: read when the program ends.
struct ImageTraffic {
  std::atomic<uint64_t> used{0}, sent{0}, sent_bytes{0};
};
ImageTraffic& image_traffic() noexcept;

// The calling thread's call copies from or to memory of the program that is not pinned.
extern thread_local constinit bool t_pageable __attribute__((tls_model("initial-exec")));
inline void note_pageable_memory() noexcept { t_pageable = true; }

// Called once, when the library is loaded. Returns false if no account is requested, or without memory for one.
bool begin_account_from_environment() noexcept;

// Counts one call of a function. `name` must live as long as the program. Thread: any. Lock: none.
void account_call(const char* name, CallClass call_class, const ThreadTraffic& before, const ThreadTraffic& after,
                  uint64_t ns) noexcept;

// The process has its session: from now on the account is printed, however the program ends. Called once.
void share_account(const Process& process) noexcept;

// Sends the account's requests to the server, before the session ends. Costs some round trips.
void ask_server_account(const Process& process) noexcept;

// Prints the account on standard error, if one was requested. Called once, after ask_server_account(), on the same
// thread.
void print_account(const Process& process) noexcept;

}  // namespace gpuwire::client
