// How the two processes begin that speak with strangers and hold no files, GPUs or rights: gpuwire-login, gpuwire-web.
#pragma once

#include <string>

#include <tl/expected.hpp>

#include "server/confinement/process_rights.hpp"

namespace gpuwire::server {

// The process ignores the signals of a terminal and of lost connections: its broker ends it, by closing the channel.
void ignore_signals();

// Takes everything away but system calls: paths, the user, capabilities, and others' view of the process, which also
// ends with its parent. Precondition: the process has one thread, and has opened what it needs.
tl::expected<void, std::string> become_nobody();

// The last step, because what is set up until then needs more calls: another call than those of `kind` kills the
// process. Does nothing in a sanitizer's build, whose runtime makes calls of its own.
tl::expected<void, std::string> limit_system_calls(ProcessKind kind);

// Writes why `program` cannot start. Returns its exit code.
int fail_to_start(const char* program, const std::string& reason);

}  // namespace gpuwire::server
