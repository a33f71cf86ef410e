// `gpuwire admin drain` and `gpuwire admin undrain`.
#pragma once

#include <string>

#include "server/cli/admin_server.hpp"

namespace gpuwire::server {

// Both print the result, and return the exit status. The first one waits until all sessions of the GPU are suspended,
// with a line for each change, for `timeout` at most, such as "10min"; empty: without end.
int drain_gpu(const RunningServer& server, unsigned gpu, const std::string& timeout);
int undrain_gpu(const RunningServer& server, unsigned gpu);

}  // namespace gpuwire::server
