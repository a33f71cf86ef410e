// A system call that changes the calling thread alone, made by every thread of the process.
#pragma once

#include <cstdint>
#include <string>

#include <tl/expected.hpp>

namespace gpuwire::server {

// The time limit for the threads; a sleeping one is woken.
inline constexpr uint32_t kAllThreadsMs = 5000;

// Makes every thread execute a system call with three arguments, the caller included; threads that they start meanwhile
// too. By signal 33, which the C library reserves for this purpose (setuid(2) of a program with threads) and blocks in
// no thread. One at a time in a process. The error: one of the threads could not, or has not answered in time; others
// may have.
tl::expected<void, std::string> call_in_all_threads(long number, long first, long second);

}  // namespace gpuwire::server
