// What a start of the server would find wrong with its configuration beyond its words, found without starting.
#pragma once

#include <string>

#include "server/broker/worker/worker_process.hpp"
#include "server/config/configuration.hpp"

namespace gpuwire::server {

// Addresses that cannot be had (those that are taken are not looked at: the server may be running), files that cannot
// be opened, an identity that cannot be used, GPUs that are not there and guarantees that do not fit them. Starts a
// worker, without a context on any GPU, to ask for the devices. Changes nothing. `module_cache`: as in ServeOptions.
ConfigurationErrors check_start(const Configuration& configuration, const WorkerCommand& worker,
                                const std::string& module_cache);

}  // namespace gpuwire::server
