// Restricts the system calls of a process. The kernel enforces the rules (seccomp(2), through libseccomp).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <tl/expected.hpp>

namespace gpuwire::server {

enum class Violation : uint8_t {
  kill,  // the process ends with SIGSYS
  log,   // the kernel executes and logs the call, to find the calls of a new driver
};

// A call that is allowed only if these bits of one argument have this value. Of several rules for one name, any is
// sufficient.
struct ArgumentRule {
  const char* name;
  // Counted from 0.
  unsigned argument;
  uint64_t mask, value;
};

// Applies permanently to all threads of the process. The function skips names that this machine's kernel or libseccomp
// does not know. In addition to `names` and `rules`, the process may send signals to itself and start threads, but no
// processes.
tl::expected<void, std::string> allow_system_calls(std::span<const char* const> names, Violation violation,
                                                   std::span<const ArgumentRule> rules = {});

// Refuses, with EPERM, unprivileged actions of the process against other processes of its user: changing their limits,
// priority or processors, or the modes and owners of their files; having signals or datagrams sent to them; typing into
// a terminal; delaying the process that closes a socket; taking disk space that no file's size shows. Call it before
// allow_system_calls(), whose list contains the same calls for the process itself. Applies permanently to all threads.
tl::expected<void, std::string> forbid_reaching_others(Violation violation);

// Gives up all capabilities permanently, for the calling thread and the threads that it starts. Does nothing without
// capabilities.
void drop_capabilities();

}  // namespace gpuwire::server
