#include <CLI/CLI.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "client_stub/launcher/ask_command.hpp"
#include "client_stub/launcher/commands.hpp"
#include "client_stub/launcher/info.hpp"
#include "client_stub/launcher/session_options.hpp"
#include "client_stub/session/borrowed_session.hpp"
#include "command_line/command_line.hpp"

namespace {

constexpr const char* kDescription =
    "Connects to a gpuwire server as a program would, and shows its devices and versions and measurements of the "
    "connection: the time to connect, the round-trip time of a call, and the bandwidth in both directions.";

constexpr const char* kFooter =
    "\n"
    "Exit code: 0; 1 with a line on stderr when the server cannot be reached or refuses; 2 for wrong usage.";

}  // namespace

std::string gpuwire::client::session_library() {
  return launcher::stub_folder(launcher::program_folder()) + "/libcuda.so.1";
}

// Under other names, which are links to it, those commands: each copy would carry the C++ library again.
int main(int argc, char** argv) {
  for (std::string_view view : {"queue", "tenant-top", "tenant-usage"}) {
    if (argc > 0 && std::string_view(argv[0]).ends_with("gpuwire-" + std::string(view)))
      return gpuwire::launcher::ask_command(view.substr(view.find('-') + 1), argc, argv);
  }
  gpuwire::launcher::InfoOptions options;
  bool quick = false;
  unsigned megabytes = 64;
  CLI::App app{kDescription, "gpuwire info"};
  app.footer(std::string(gpuwire::launcher::kSessionEnvironment) + gpuwire::launcher::kConfigurationFiles + kFooter);
  gpuwire::launcher::SessionOptions session;
  gpuwire::launcher::add_session_options(app, session, false);
  app.add_flag("--json", options.json, "Print one JSON object instead of text");
  app.add_flag("--quick", quick, "Do not measure round trips and bandwidth");
  app.add_option("--round-trips", options.round_trips, "How many round trips to measure; the median is shown")
      ->capture_default_str()
      ->check(CLI::Range(1u, gpuwire::launcher::kRoundTripsMax));
  app.add_option("--megabytes", megabytes, "How many MiB to transfer each way to measure the bandwidth")
      ->capture_default_str()
      ->check(CLI::Range(1u, unsigned(gpuwire::launcher::kInfoBytesMax >> 20)));
  if (auto code = gpuwire::parse_command_line(app, argc, argv)) return *code;
  if (auto set = set_environment(session); !set) {
    std::fprintf(stderr, "gpuwire info: %s\n", set.error().c_str());
    return gpuwire::kUsageError;
  }
  options.server = std::getenv("GPUWIRE_SERVER");
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
