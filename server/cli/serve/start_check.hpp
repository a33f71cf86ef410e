// Finds the mistakes of a configuration beyond its text, as a start of the server would, without starting.
#pragma once

#include <string>

#include "server/broker/worker/worker_process.hpp"
#include "server/config/configuration.hpp"

namespace gpuwire::server {

struct StartFindings {
  ConfigurationErrors errors;    // a start would end with them
  ConfigurationErrors warnings;  // the server would start, and do without
};

// Addresses that cannot be had (a gpuwire server that runs may have them), files that cannot be opened, folders that
// cannot be written, an identity that cannot be used, GPUs that are not there and guarantees that do not fit them; RDMA
// that is asked for and cannot be offered, users that workers cannot get. Starts a worker, without a context on any
// GPU, to ask for the devices. Leaves nothing behind. `module_cache`: as in ServeOptions.
StartFindings check_start(const Configuration& configuration, const WorkerCommand& worker,
                          const std::string& module_cache);

}  // namespace gpuwire::server
