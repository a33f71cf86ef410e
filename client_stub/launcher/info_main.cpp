#include <CLI/CLI.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "client_stub/launcher/info.hpp"
#include "client_stub/launcher/login_options.hpp"

namespace {

constexpr int kUsageError = 2;

constexpr const char* kDescription =
    "Connects to a gpuwire server as a program would, and shows its devices and versions, and what the way to it measures: the time to "
    "connect, the round-trip time of a call, and the bandwidth of bulk data in both directions.";

constexpr const char* kEnvironment =
    "Environment:\n"
    "  GPUWIRE_SERVER          the server, when --server is not given\n";

constexpr const char* kFooter =
    "\n"
    "Exit code: 0; 1 with a line on stderr when the server cannot be reached or refuses; 2 for wrong use.";

}  // namespace

int main(int argc, char** argv) {
  gpuwire::launcher::InfoOptions options;
  bool quick = false;
  unsigned megabytes = 64;
  CLI::App app{kDescription, "gpuwire info"};
  app.footer(std::string(kEnvironment) + gpuwire::launcher::kLoginEnvironment + kFooter);
  app.set_version_flag("--version", "gpuwire " GPUWIRE_VERSION);
  app.add_option("-s,--server", options.server, "The server: HOST[:PORT] (port 9750; with TLS, but on this machine), tls://..., tcp://... (bare) or unix:/PATH")->type_name("SERVER");
  gpuwire::launcher::LoginOptions login;
  gpuwire::launcher::add_login_options(app, login, false);
  app.add_flag("--json", options.json, "Print one JSON object instead of text");
  app.add_flag("--quick", quick, "Do not measure round trips and bandwidth");
  app.add_option("--round-trips", options.round_trips, "Round trips to take the median of")
      ->capture_default_str()
      ->check(CLI::Range(1u, gpuwire::launcher::kRoundTripsMax));
  app.add_option("--megabytes", megabytes, "MiB to move each way for the bandwidth")
      ->capture_default_str()
      ->check(CLI::Range(1u, unsigned(gpuwire::launcher::kInfoBytesMax >> 20)));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    int code = app.exit(error);
    return code == 0 ? 0 : kUsageError;
  }
  const char* from_environment = std::getenv("GPUWIRE_SERVER");
  if (options.server.empty() && from_environment) options.server = from_environment;
  if (options.server.empty()) {
    std::fputs("gpuwire info: no server given: use --server HOST:PORT, or set GPUWIRE_SERVER\n", stderr);
    return kUsageError;
  }
  set_environment(login);
  options.measure = !quick;
  options.bulk_bytes = uint64_t(megabytes) << 20;
  auto info = gpuwire::launcher::gather_info(options);
  if (!info) {
    std::fprintf(stderr, "gpuwire info: %s\n", info.error().c_str());
    return 1;
  }
  std::string text = options.json ? info_json(*info) : info_text(*info);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}
