// The start of the two processes that serve unauthenticated callers without files, GPUs or rights: gpuwire-login,
// gpuwire-web. gpuwire-suspender shares some of the steps.
#pragma once

#include <string>

#include <tl/expected.hpp>

#include "server/confinement/process_rights.hpp"

namespace gpuwire::server {

// Ignores the signals of lost connections, and those that end the broker and may reach the whole group (a terminal's
// Ctrl-C, a service manager's SIGTERM): the broker ends the process by closing the channel.
void ignore_signals();

// Allows as many descriptors as the system gives: each connection needs one, and each process limits its connections.
void allow_descriptors();

// Drops all rights but system calls: paths, the user and capabilities; makes the process invisible to debuggers, and
// makes it end with its parent. Precondition: the process has one thread, and has opened all files that it needs.
tl::expected<void, std::string> become_nobody();

// Kills the process at any system call that `kind` does not allow. This is the last step, because the initialisation
// needs more calls. Does nothing in a sanitizer's build, whose runtime makes other calls.
tl::expected<void, std::string> limit_system_calls(ProcessKind kind);

// Writes the reason why `program` cannot start. Returns its exit code.
int fail_to_start(const char* program, const std::string& reason);

}  // namespace gpuwire::server
