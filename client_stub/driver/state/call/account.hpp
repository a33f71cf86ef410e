// The costs of a program's calls, by function: counted while GPUWIRE_STATS asks for it, and printed when the program
// ends, by the program itself or, if it cannot print any more, by the process that `gpuwire run` has left for this.
#pragma once

#include <atomic>
#include <cstdint>

#include "client_stub/driver/process/call_class.hpp"
#include "client_stub/session/session.hpp"

namespace gpuwire::client {

struct Process;

// Program images that the process used, and those that had to be sent. Relaxed: read when the program ends.
struct ImageTraffic {
  std::atomic<uint64_t> used{0}, sent{0}, sent_bytes{0};
};
ImageTraffic& image_traffic() noexcept;

// The calling thread's call has a side in memory of the program that is not pinned.
extern thread_local constinit bool t_pageable __attribute__((tls_model("initial-exec")));
inline void note_pageable_memory() noexcept { t_pageable = true; }

// Once, when the library is loaded. False: no account was asked for, or there is no memory for one.
bool begin_account_from_environment() noexcept;

// One call of one function. `name` is a string that lives as long as the program. Any thread; takes no lock.
void account_call(const char* name, CallClass call_class, const ThreadTraffic& before, const ThreadTraffic& after,
                  uint64_t ns) noexcept;

// The process has its session: from now on there is something to say, whatever ends it. Once.
void share_account(const Process& process) noexcept;

// The program has ended: the account's requests to the server, before the session ends. Some round trips.
void ask_server_account(const Process& process) noexcept;

// The account on standard error, if one was asked for. Once, after ask_server_account(), on the same thread.
void print_account(const Process& process) noexcept;

}  // namespace gpuwire::client
