// Executes a system call that changes only the calling thread in every thread of the process.
#pragma once

#include <cstdint>
#include <string>

#include <tl/expected.hpp>

namespace gpuwire::server {

// The time limit for the threads; a sleeping one is woken.
inline constexpr uint32_t kAllThreadsMs = 5000;

// Makes every thread, the caller included, execute a system call with three arguments, and also threads that start
// meanwhile. Uses signal 33, which the C library reserves for this purpose (setuid(2) of a program with threads) and
// blocks in no thread. One call at a time in a process. The error: the call failed in one of the threads, or a thread
// has not answered in time; other threads may have executed the call.
tl::expected<void, std::string> call_in_all_threads(long number, long first, long second);

}  // namespace gpuwire::server
