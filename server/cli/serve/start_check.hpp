// Finds the mistakes of a configuration beyond its text, as a start of the server would, without starting.
#pragma once

#include <string>

#include "server/broker/worker/worker_process.hpp"
#include "server/config/configuration.hpp"

namespace gpuwire::server {

struct StartFindings {
  // A start would end with them.
  ConfigurationErrors errors;
  // The server would start without the feature.
  ConfigurationErrors warnings;
};

// Finds unavailable addresses (a running gpuwire server may use them), files that cannot be opened, folders that are
// not writable, an unusable identity, missing GPUs, guarantees that do not fit them, RDMA that cannot be offered, and
// users that workers cannot get. Starts a worker, without a context on any GPU, to query the devices. Leaves nothing
// behind. `module_cache`: as in ServeOptions.
StartFindings check_start(const Configuration& configuration, const WorkerCommand& worker,
                          const std::string& module_cache);

}  // namespace gpuwire::server
