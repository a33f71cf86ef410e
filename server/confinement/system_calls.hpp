// Which system calls a process may make from now on, enforced by the kernel (seccomp(2), by way of libseccomp).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <tl/expected.hpp>

namespace gpuwire::server {

enum class Violation : uint8_t {
  kill,  // the process ends with SIGSYS
  log,   // the call is made, and the kernel logs it: for finding out the needs of a new driver
};

// A call that may be made only where these bits of one argument have this value; several of a name: where any holds.
struct ArgumentRule {
  const char* name;
  unsigned argument;  // counted from 0
  uint64_t mask, value;
};

// All threads of the process, for good. Names that this machine's kernel or libseccomp does not know are left out.
// Beside `names`, and the calls that `rules` allow in addition, signals may be sent to the process itself, and threads
// started, but no processes.
tl::expected<void, std::string> allow_system_calls(std::span<const char* const> names, Violation violation,
                                                   std::span<const ArgumentRule> rules = {});

// Actions of the process against others of its user that need no privilege are refused from now on with EPERM: changing
// their limits, priority or processors, the modes and owners of their files, having signals or datagrams sent to them,
// typing into a terminal, making the closer of a socket wait, taking room on a disk that no file's size shows. Before
// allow_system_calls(), whose list has the same calls for the process itself. All threads, for good.
tl::expected<void, std::string> forbid_reaching_others(Violation violation);

// Gives up all of root's privileges, for good; without any, does nothing. The calling thread and those that it starts.
void drop_capabilities();

}  // namespace gpuwire::server
