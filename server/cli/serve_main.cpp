// gpuwire-serve: `gpuwire serve`.
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>

#include <CLI/CLI.hpp>
#include <boost/asio/io_context.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "server/arbiter/arbiter_part.hpp"
#include "server/broker/broker.hpp"
#include "server/broker/limits.hpp"
#include "server/cli/listen_address.hpp"
#include "server/cli/observation.hpp"
#include "server/log/log.hpp"

namespace gpuwire::server {
namespace {

constexpr int kExitUsage = 2;

constexpr const char* kDescription =
    "Serves the GPUs of this machine to CUDA programs on other machines.\n"
    "\n"
    "A program runs with `gpuwire run --server HOST:PORT -- PROGRAM ARGS`; its CUDA driver calls are sent here and replayed, each program in a\n"
    "process of its own. When it accepts programs, one line is written to standard output:\n"
    "\n"
    "    listening on 127.0.0.1:9750, 1 x NVIDIA H200, NVIDIA 580.159.04, CUDA 13.0\n"
    "\n"
    "Everything else (sessions that begin and end, refused connections, failures) is logged to standard error.\n";

constexpr const char* kFooter =
    "Signals:\n"
    "  SIGTERM, SIGINT   stop accepting; running sessions have --drain-seconds to end. A second one ends them at once.\n"
    "\n"
    "Exit status:\n"
    "  0  ended by a signal\n"
    "  1  the address cannot be had, or no worker process could open the device\n"
    "  2  wrong arguments\n"
    "\n"
    "Examples:\n"
    "  gpuwire serve                                          the best device, for programs on this machine\n"
    "  gpuwire serve --listen 127.0.0.1:0 --device software   a free port, no GPU needed\n"
    "  gpuwire serve --listen 0.0.0.0:9750 --allow-unencrypted-network\n"
    "                                                         for a network on which everybody may use this GPU and read the traffic\n";

struct ServeOptions {
  std::string listen = "127.0.0.1:9750";
  std::string device = "auto";
  unsigned software_devices = 1;
  uint64_t software_memory_bytes = 0;
  bool allow_unencrypted_network = false;
  unsigned sessions_max = 64;
  unsigned spare_workers = 1;
  unsigned drain_seconds = 30;
  std::string log_level = "info";
  std::string module_cache;
  uint64_t module_cache_bytes = uint64_t(8) << 30;
  std::string worker;
  std::string software_library;
  std::string confinement = "enforce";
};

std::string worker_beside_this_program() {
  std::error_code error;
  return (std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "gpuwire-worker").string();
}

void declare(CLI::App& app, ServeOptions& options) {
  app.footer(kFooter);
  app.set_version_flag("--version", GPUWIRE_VERSION);
  app.add_option("--listen", options.listen, "Where to accept programs; port 0 picks a free one")->type_name("HOST:PORT")->capture_default_str();
  app.add_option("--device", options.device, "auto: NVIDIA's driver if it has a device, else the software device, which computes on the CPU")
      ->type_name("WHICH")->check(CLI::IsMember({"auto", "cuda", "software"}))
      ->capture_default_str();
  app.add_option("--software-devices", options.software_devices, "How many devices the software device shows")
      ->type_name("N")->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--software-memory", options.software_memory_bytes, "How much memory each of them shows. Default: 4 GiB")->type_name("BYTES");
  app.add_flag("--allow-unencrypted-network", options.allow_unencrypted_network,
               "Listen on an address that is not loopback although nothing is encrypted and nobody is asked who they are: everybody who reaches "
               "the port can use the GPU, and everybody on the way can read and change the data");
  app.add_option("--max-sessions", options.sessions_max, "Programs served at once; one more is refused")
      ->type_name("N")->check(CLI::Range(1, 100'000))->capture_default_str();
  app.add_option("--spare-workers", options.spare_workers, "Processes kept ready with the driver initialised, so that a program starts fast")
      ->type_name("N")->check(CLI::Range(0u, kSpareWorkersMax))->capture_default_str();
  app.add_option("--drain-seconds", options.drain_seconds, "How long running sessions have to end after SIGTERM")->type_name("S")->capture_default_str();
  app.add_option("--log-level", options.log_level, "What is logged")->type_name("LEVEL")->check(CLI::IsMember({"debug", "info", "warn", "error", "off"}))->capture_default_str();
  app.add_option("--module-cache", options.module_cache, "Keep the programs' GPU code here from one session to the next; none: only while a session runs. Default: a gpuwire "
                 "folder in the user's cache folder")
      ->type_name("DIR|none");
  app.add_option("--module-cache-bytes", options.module_cache_bytes, "Bound of that folder; what was used longest ago goes first")
      ->type_name("BYTES")->capture_default_str();
  app.add_option("--confinement", options.confinement, "What the kernel refuses to the processes that serve programs: enforce; log: system calls that are not expected are only "
                 "logged, by the kernel; off: nothing, for debuggers")
      ->type_name("LEVEL")->check(CLI::IsMember({"enforce", "log", "off"}))->capture_default_str();
  // For tests: hidden from the help.
  app.add_option("--worker", options.worker, "The worker program")->type_name("PATH")->group("");
  app.add_option("--software-library", options.software_library, "The software device's library")->type_name("PATH")->group("");
}

WorkerCommand worker_command(const ServeOptions& options) {
  WorkerCommand command{options.worker.empty() ? worker_beside_this_program() : options.worker,
                        {"--device", options.device, "--software-devices", std::to_string(options.software_devices), "--module-cache-bytes",
                         std::to_string(options.module_cache_bytes)}};
  auto pass_on = [&](const char* name, const std::string& value) {
    if (!value.empty()) command.arguments.insert(command.arguments.end(), {name, value});
  };
  pass_on("--confinement", options.confinement);
  if (options.software_memory_bytes) pass_on("--software-memory", std::to_string(options.software_memory_bytes));
  pass_on("--module-cache", options.module_cache);
  pass_on("--software-library", options.software_library);
  return command;
}

std::string text_of(const boost::asio::ip::tcp::endpoint& where) {
  std::string address = where.address().to_string();
  return fmt::format(fmt::runtime(where.address().is_v6() ? "[{}]:{}" : "{}:{}"), address, where.port());
}

void print_listening(const std::string& where, const std::string& devices) {
  std::printf("listening on %s, %s\n", where.c_str(), devices.c_str());
  std::fflush(stdout);
}

int fail(int status, const std::string& reason) {
  std::fprintf(stderr, "gpuwire serve: %s\n", reason.c_str());
  return status;
}

int serve(const ServeOptions& options) {
  auto listen = parse_listen_address(options.listen);
  if (!listen) return fail(kExitUsage, listen.error());
  if (!listen->address().is_loopback() && !options.allow_unencrypted_network) {
    return fail(kExitUsage, fmt::format("{} is not a loopback address, and this server encrypts nothing and asks nobody who they are. If the network "
                                        "between it and its clients is yours alone, say --allow-unencrypted-network",
                                        options.listen));
  }
  Configuration configuration = open_configuration();
  configuration.sessions_max = options.sessions_max;
  start_log("gpuwire-serve", configuration.log_format == "json" ? LogFormat::json : LogFormat::text, options.log_level);
  if (!listen->address().is_loopback())
    spdlog::warn("unencrypted and open: everybody who reaches {} can use this machine's GPU, and the network can read the data", options.listen);
  boost::asio::io_context io(1);
  Broker broker(io, {.listen = *listen,
                     .worker = worker_command(options),
                     .spare_workers = options.spare_workers,
                     .drain_seconds = options.drain_seconds,
                     .configuration = configuration});
  ArbiterPart arbiter(io, broker.sessions(), {.scheduling = configuration.scheduling, .cores = std::thread::hardware_concurrency()});
  broker.sessions().add_part(arbiter);
  auto observation = Observation::start(io, broker, configuration, {});
  if (!observation) return fail(1, observation.error());
  (*observation)->monitor().add_source(arbiter);
  auto listening = [&](const boost::asio::ip::tcp::endpoint& where, const std::string& devices) {
    (*observation)->listening(text_of(where), devices);
    print_listening(text_of(where), devices);
  };
  if (auto started = broker.start(listening); !started) return fail(1, started.error());
  io.run();
  if (!broker.failure().empty()) return fail(1, broker.failure());
  return 0;
}

}  // namespace
}  // namespace gpuwire::server

int main(int argc, char** argv) {
  gpuwire::server::ServeOptions options;
  CLI::App app(gpuwire::server::kDescription, "gpuwire serve");
  gpuwire::server::declare(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : gpuwire::server::kExitUsage;
  }
  try {
    return gpuwire::server::serve(options);
  } catch (const std::exception& error) {
    return gpuwire::server::fail(1, error.what());
  }
}
