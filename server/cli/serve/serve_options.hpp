// The command line of `gpuwire serve`.
#pragma once

#include <cstdint>
#include <string>

#include "server/broker/limits.hpp"
#include "server/broker/suspension/suspender_process.hpp"
#include "server/broker/worker/worker_process.hpp"
#include "server/config/configuration.hpp"

namespace gpuwire {
class CommandLine;
}

namespace gpuwire::server {

struct ServeOptions {
  // Empty: the open tenant on loopback.
  std::string config_file;
  bool check_config = false;
  ConfigurationOverrides overrides;
  std::string device = "auto";
  unsigned software_devices = 1;
  uint64_t software_memory_bytes = 0;
  unsigned prewarmed_workers = 1;
  unsigned prewarmed_workers_max = kPrewarmedWorkersMostUsual;
  unsigned drain_seconds = 30;
  std::string log_level = "info";
  std::string module_cache;
  uint64_t module_cache_bytes = uint64_t(8) << 30;
  std::string worker;
  std::string software_library;
  uint32_t gpu_return_ms = kGpuReturnMs;
  std::string confinement = "enforce";
};

// The parsed options are stored in `options`, which outlives `app`.
void declare(CommandLine& app, ServeOptions& options);
// Reads the file, if one is named, and applies the command line's values over it; called again at each reload.
tl::expected<Configuration, ConfigurationErrors> read_configuration(const ServeOptions& options);
// Does the same for --check-config, and continues after mistakes.
ReadConfiguration check_configuration_file(const ServeOptions& options);
WorkerCommand worker_command(const ServeOptions& options, const Configuration& configuration);
// `workers_have_users`: each worker has a real user of its own.
SuspenderProcess::Command suspender_command(const ServeOptions& options, bool workers_have_users);
// Returns the path of a program in this program's folder.
std::string beside_this_program(const char* name);

}  // namespace gpuwire::server
