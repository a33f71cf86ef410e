// gpuwire-serve: `gpuwire serve`.
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <boost/asio/io_context.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "server/arbiter/arbiter_part.hpp"
#include "server/broker/broker.hpp"
#include "server/cli/listen_address.hpp"
#include "server/cli/observation.hpp"
#include "server/cli/reloader.hpp"
#include "server/cli/serve_options.hpp"
#include "server/ledger/broker_ledger.hpp"
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
    "  SIGHUP            read the configuration file again; sessions go on. A file with a mistake is told in the log and changes nothing.\n"
    "  SIGTERM, SIGINT   stop accepting; running sessions have --drain-seconds to end. A second one ends them at once.\n"
    "\n"
    "Exit status:\n"
    "  0  ended by a signal\n"
    "  1  the address cannot be had, or no worker process could open the device\n"
    "  2  wrong arguments, or mistakes in the configuration file\n"
    "\n"
    "Examples:\n"
    "  gpuwire serve                                          the best device, for programs on this machine\n"
    "  gpuwire serve --listen 127.0.0.1:0 --device software   a free port, no GPU needed\n"
    "  gpuwire serve --config /etc/gpuwire/server.toml        tenants, limits, TLS: docs/configuration.md\n"
    "  gpuwire serve --listen 0.0.0.0:9750 --allow-unencrypted-network\n"
    "                                                         for a network on which everybody may use this GPU and read the traffic\n";

// "127.0.0.1:9750 and unix:/run/gpuwire/socket"
std::string text_of(const std::vector<ListenAddress>& addresses) {
  std::string text;
  for (const ListenAddress& address : addresses) text += (text.empty() ? "" : " and ") + text_of(address);
  return text;
}

void print_listening(const std::string& where, const std::string& devices) {
  std::printf("listening on %s, %s\n", where.c_str(), devices.c_str());
  std::fflush(stdout);
}

int fail(int status, const std::string& reason) {
  std::fprintf(stderr, "gpuwire serve: %s\n", reason.c_str());
  return status;
}

int fail(int status, const ConfigurationErrors& errors) {
  for (const std::string& error : errors) std::fprintf(stderr, "gpuwire serve: %s\n", error.c_str());
  return status;
}

// Every address of the configuration. The error names the one that is none.
tl::expected<std::vector<ListenAddress>, std::string> listen_addresses(const Configuration& configuration) {
  std::vector<ListenAddress> addresses;
  for (const std::string& text : configuration.listen) {
    auto address = parse_listen(text);
    if (!address) return tl::unexpected(address.error());
    addresses.push_back(std::move(*address));
  }
  return addresses;
}

void warn_of_plain_addresses(const Configuration& configuration, const std::vector<ListenAddress>& listen) {
  if (!configuration.allow_unencrypted_network) return;
  for (const ListenAddress& address : listen) {
    if (is_reachable_from_elsewhere(address))
      spdlog::warn("unencrypted: the network between {} and its clients can read and change the data, and steal the tokens that they show", text_of(address));
  }
}

int serve(const ServeOptions& options) {
  auto configuration = read_configuration(options);
  if (!configuration) return fail(kExitUsage, configuration.error());
  if (options.check_config) {
    std::printf("%s is right\n", options.config_file.c_str());
    return 0;
  }
  auto listen = listen_addresses(*configuration);
  if (!listen) return fail(kExitUsage, listen.error());
  start_log("gpuwire-serve", configuration->log_format == "json" ? LogFormat::json : LogFormat::text, options.log_level);
  warn_of_plain_addresses(*configuration, *listen);
  boost::asio::io_context io(1);
  Broker broker(io, {.listen = *listen,
                     .worker = worker_command(options),
                     .login_program = beside_this_program("gpuwire-login"),
                     .spare_workers = options.spare_workers,
                     .drain_seconds = options.drain_seconds,
                     .configuration = *configuration});
  BrokerLedger ledger(io, broker.sessions(), {.spare_workers = options.spare_workers});
  broker.sessions().add_part(ledger);
  broker.admission().set_free_bytes([&](scheduler::TenantId tenant, scheduler::DeviceIndex device) { return ledger.free_bytes(tenant, device); });
  ArbiterPart arbiter(io, broker.sessions(), {.scheduling = configuration->scheduling, .cores = std::thread::hardware_concurrency()});
  broker.sessions().add_part(arbiter);
  Reloader reloader(io, broker, *configuration, [&] { return read_configuration(options); });
  auto observation = Observation::start(io, broker, *configuration, options.config_file.empty() ? Observation::Reload{} : [&] { return reloader.reload(); });
  if (!observation) return fail(1, observation.error());
  (*observation)->monitor().add_source(ledger);
  (*observation)->monitor().add_source(arbiter);
  reloader.observe([&](const auto& result) { (*observation)->reloaded(result); });
  auto listening = [&](const std::vector<ListenAddress>& where, const std::string& devices) {
    (*observation)->listening(text_of(where), devices);
    print_listening(text_of(where), devices);
  };
  if (!options.config_file.empty()) reloader.start([&] { (*observation)->reopen_files(); });
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
  app.footer(gpuwire::server::kFooter);
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
