// spawn_child() starts one of the server's own processes.
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>
#include <tl/expected.hpp>

namespace gpuwire::server {

// The child has an empty stdin, `output` as stdout and stderr (below 0: the broker's stderr), `ipc_end` at
// ipc::kDescriptor, and no other descriptor; no signal is blocked or ignored. `arguments` are without the program's
// name; `environment`: as "NAME=value", null for the broker's. The error names program and cause.
tl::expected<pid_t, std::string> spawn_child(const std::string& program, const std::vector<std::string>& arguments,
                                             int ipc_end, int output,
                                             const std::vector<std::string>* environment = nullptr);
// Returns waitpid's status as "exit code 1" or "signal 11 (Segmentation fault)".
std::string describe_status(int status);

}  // namespace gpuwire::server
