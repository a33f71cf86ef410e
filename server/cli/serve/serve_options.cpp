#include "server/cli/serve/serve_options.hpp"

#include <filesystem>

#include "command_line/command.hpp"
#include "protocol/units/byte_size.hpp"
#include "server/broker/limits.hpp"

namespace gpuwire::server {

std::string beside_this_program(const char* name) {
  std::error_code error;
  return (std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / name).string();
}

namespace {

// Returns the bytes of a size with a unit, as users write it.
tl::expected<std::string, std::string> bytes_of(const std::string& text) {
  return units::parse_byte_size(text).map([](uint64_t bytes) { return std::to_string(bytes); });
}

}  // namespace

void declare(CommandLine& app, ServeOptions& options) {
  app.add_option(
         "--config", options.config_file,
         "The configuration file: tenants, their limits, TLS. Without one everybody on this machine may use all GPUs")
      .type_name("FILE");
  app.add_flag("--check-config", options.check_config,
               "Report what is wrong with the configuration file, and with the files, addresses and GPUs that it "
               "names, and exit")
      .needs("--config");
  app.add_option(
         "--listen", options.overrides.listen,
         "Where to accept programs, instead of what the file says; port 0 picks a free port; may be given several "
         "times. Default: 127.0.0.1:9750")
      .type_name("HOST:PORT|unix:PATH")
      .take_all();
  app.add_option(
         "--device", options.device,
         "cuda: NVIDIA's driver; software: the software device, which computes on the CPU; auto: NVIDIA's driver, or "
         "the software device where there is no NVIDIA library or no device file of its")
      .type_name("WHICH")
      .one_of({"auto", "cuda", "software"})
      .take_last()
      .capture_default_str();
  app.add_option("--software-devices", options.software_devices, "How many devices the software device shows")
      .type_name("N")
      .between(1, 64)
      .capture_default_str();
  app.add_option("--software-memory", options.software_memory_bytes,
                 "How much memory each of them shows, such as 4GiB. Default: 4GiB")
      .type_name("SIZE")
      .transform(bytes_of);
  app.add_flag("--allow-unencrypted-network", options.overrides.allow_unencrypted_network,
               "Listen on an address that is not loopback although nothing is encrypted and nobody is asked who they "
               "are: everybody who reaches the port can use the GPU, and everybody on the path can read and change the "
               "data");
  app.add_option("--max-sessions", options.overrides.sessions_max, "Programs served at once; others wait. Default: 64")
      .type_name("N")
      .between(1, 100'000);
  app.add_option("--prewarmed-workers", options.prewarmed_workers,
                 "Processes kept ready with the driver initialised, for each GPU, so that programs start fast; 0: none")
      .type_name("N")
      .between(0u, kPrewarmedWorkersMax)
      .capture_default_str();
  app.add_option(
         "--prewarmed-workers-max", options.prewarmed_workers_max,
         "Up to this many while programs arrive faster than processes start, and while nobody needs their memory")
      .type_name("N")
      .between(0u, kPrewarmedWorkersMax)
      .capture_default_str();
  app.add_option("--drain-seconds", options.drain_seconds, "How long running sessions have to end after SIGTERM")
      .type_name("S")
      .capture_default_str();
  app.add_option("--log-level", options.log_level, "What is logged")
      .type_name("LEVEL")
      .one_of({"debug", "info", "warn", "error", "off"})
      .capture_default_str();
  app.add_option("--module-cache", options.module_cache,
                 "Keep the programs' GPU code here from one session to the next; none: only while a session runs. "
                 "Default: /var/cache/gpuwire for root, else a gpuwire folder in the user's cache folder")
      .type_name("DIR|none");
  app.add_option("--module-cache-bytes", options.module_cache_bytes,
                 "Upper bound of that folder, such as 20GiB; what was used longest ago is deleted first. Default: 8GiB")
      .type_name("SIZE")
      .transform(bytes_of);
  app.add_option(
         "--confinement", options.confinement,
         "Whether the kernel confines the processes that serve programs: enforce; log: unexpected system calls are "
         "only logged, by the kernel; off: no confinement, for debuggers")
      .type_name("LEVEL")
      .one_of({"enforce", "log", "off"})
      .capture_default_str();
  // This option is for tests, and hidden from the help.
  app.add_option("--worker", options.worker, "The worker program").type_name("PATH").group("");
  app.add_option("--gpu-return-ms", options.gpu_return_ms, "How long sessions of an earlier server wait for their GPUs")
      .type_name("MS")
      .group("");
  app.add_option("--software-library", options.software_library, "The software device's library")
      .type_name("PATH")
      .group("");
}

WorkerCommand worker_command(const ServeOptions& options, const Configuration& configuration) {
  WorkerCommand command{options.worker.empty() ? beside_this_program("gpuwire-worker") : options.worker,
                        {"--device", options.device, "--software-devices", std::to_string(options.software_devices),
                         "--module-cache-bytes", std::to_string(options.module_cache_bytes)}};
  auto pass_on = [&](const char* name, const std::string& value) {
    if (!value.empty()) command.arguments.insert(command.arguments.end(), {name, value});
  };
  pass_on("--confinement", options.confinement);
  if (options.software_memory_bytes) pass_on("--software-memory", std::to_string(options.software_memory_bytes));
  pass_on("--module-cache", options.module_cache);
  pass_on("--software-library", options.software_library);
  if (configuration.rdma) command.arguments.push_back("--rdma");
  pass_on("--cupti", configuration.cupti);
  // The software device moves a process's memory only if the process was started so.
  command.environment.emplace_back("GPUWIRE_SOFTWARE_CHECKPOINTS", "1");
  return command;
}

SuspenderProcess::Command suspender_command(const ServeOptions& options, bool workers_have_users) {
  SuspenderProcess::Command command{beside_this_program("gpuwire-suspender"), {"--device", options.device}};
  auto pass_on = [&](const char* name, const std::string& value) {
    if (!value.empty()) command.arguments.insert(command.arguments.end(), {name, value});
  };
  pass_on("--confinement", options.confinement);
  pass_on("--software-library", options.software_library);
  if (workers_have_users) command.arguments.push_back("--keep-rights");
  return command;
}

ReadConfiguration check_configuration_file(const ServeOptions& options) {
  return options.config_file.empty() ? check_open_configuration(options.overrides)
                                     : check_configuration_file(options.config_file, options.overrides);
}

tl::expected<Configuration, ConfigurationErrors> read_configuration(const ServeOptions& options) {
  return options.config_file.empty() ? open_configuration(options.overrides)
                                     : read_configuration(options.config_file, options.overrides);
}

}  // namespace gpuwire::server
