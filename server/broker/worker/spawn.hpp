// Starting a process of the server's own.
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>
#include <tl/expected.hpp>

namespace gpuwire::server {

// Nothing in, text to `output` (below 0: the broker's stderr), the descriptor at ipc::kDescriptor, no other; no signal
// blocked or ignored. `arguments` are without the program's name; `environment`: as "NAME=value", null for the
// broker's. The error names program and cause.
tl::expected<pid_t, std::string> spawn_child(const std::string& program, const std::vector<std::string>& arguments,
                                             int ipc_end, int output,
                                             const std::vector<std::string>* environment = nullptr);
// "exit code 1", "signal 11 (Segmentation fault)": of waitpid's status.
std::string describe_status(int status);

}  // namespace gpuwire::server
