#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "client_stub/launcher/ask_command.hpp"
#include "client_stub/launcher/commands.hpp"
#include "client_stub/launcher/end_command.hpp"
#include "client_stub/launcher/info.hpp"
#include "client_stub/launcher/move_command.hpp"
#include "client_stub/launcher/session_options.hpp"
#include "client_stub/session/ask.hpp"
#include "client_stub/session/borrowed_session.hpp"
#include "client_stub/session/login_settings.hpp"
#include "command_line/command_line.hpp"
#include "protocol/wire/terminal_text.hpp"

namespace {

constexpr const char* kDescription =
    "Connects to a gpuwire server as a program would, and shows its devices and versions and measurements of the "
    "connection: the time to connect, the round-trip time of a call, and the bandwidth in both directions.";

constexpr const char* kFooter =
    "\n"
    "Of several servers each is shown, with --json as one array; one that is full is not waited for.\n"
    "\n"
    "Exit code: 0; 1 with a line on stderr when a server cannot be reached or refuses; 2 for wrong usage.";

// The server's description of the user. An older server has none.
std::string who_am_i(const std::string& server, bool json) {
  std::string answer, error;
  if (gpuwire::client::ask_server(server, json ? "me json" : "me text", answer, error) != CUDA_SUCCESS) return {};
  std::string shown;
  for (size_t begin = 0; begin < answer.size();) {
    const size_t end = std::min(answer.find('\n', begin), answer.size());
    std::string line = answer.substr(begin, end - begin);
    gpuwire::wire::blank_unshown(line);
    shown += line + "\n";
    begin = end + 1;
  }
  return shown;
}

// Servers are measured in turn, so that each has the network for itself. An unreachable server does not hide the
// others.
int show_all(gpuwire::launcher::InfoOptions options) {
  const std::vector<std::string> servers = gpuwire::launcher::named_servers();
  // A wait in the queue of a full server would delay the others.
  if (servers.size() > 1) setenv("GPUWIRE_QUEUE", "off", 0);
  int code = 0;
  std::vector<std::string> texts;
  for (const std::string& server : servers) {
    options.server = server;
    auto info = gpuwire::launcher::gather_info(options);
    if (!info) {
      std::fprintf(stderr, "gpuwire info: %s\n", info.error().c_str());
      code = 1;
      continue;
    }
    info->tenant = who_am_i(server, options.json);
    texts.push_back(options.json ? info_json(*info) : info_text(*info));
  }
  const bool list = options.json && servers.size() > 1;
  std::string all = list ? "[" : "";
  for (size_t i = 0; i < texts.size(); ++i) all += (i == 0 ? "" : list ? "," : "\n") + texts[i];
  if (list) all += "]\n";
  std::fwrite(all.data(), 1, all.size(), stdout);
  return code;
}

}  // namespace

std::string gpuwire::client::session_library() {
  return launcher::stub_folder(launcher::program_folder()) + "/libcuda.so.1";
}

// Links with other names execute other commands, because each copy would contain the C++ library again.
int main(int argc, char** argv) {
  const std::string_view name = argc > 0 ? argv[0] : "";
  if (name.ends_with("gpuwire-end")) return gpuwire::launcher::end_command(argc, argv);
  if (name.ends_with("gpuwire-suspend")) return gpuwire::launcher::suspend_command(argc, argv);
  if (name.ends_with("gpuwire-resume")) return gpuwire::launcher::resume_command(argc, argv);
  for (std::string_view view : {"queue", "tenant-top", "tenant-usage"}) {
    if (name.ends_with("gpuwire-" + std::string(view)))
      return gpuwire::launcher::ask_command(view.substr(view.find('-') + 1), argc, argv);
  }
  gpuwire::launcher::InfoOptions options;
  bool quick = false;
  unsigned megabytes = 64;
  gpuwire::CommandLine app{kDescription, "gpuwire info"};
  app.footer({gpuwire::launcher::kSessionEnvironment, gpuwire::launcher::kConfigurationFiles, kFooter});
  gpuwire::launcher::SessionOptions session;
  gpuwire::launcher::add_session_options(app, session, false);
  app.add_flag("--json", options.json, "Print one JSON object instead of text");
  app.add_flag("--quick", quick, "Do not measure round trips and bandwidth");
  app.add_option("--round-trips", options.round_trips, "How many round trips to measure; the median is shown")
      .capture_default_str()
      .between(1u, gpuwire::launcher::kRoundTripsMax);
  app.add_option("--megabytes", megabytes, "How many MiB to transfer each way to measure the bandwidth")
      .capture_default_str()
      .between(1u, unsigned(gpuwire::launcher::kInfoBytesMax >> 20));
  if (auto code = gpuwire::parse_command_line(app, argc, argv)) return *code;
  if (auto set = set_environment(session); !set) {
    std::fprintf(stderr, "gpuwire info: %s\n", set.error().c_str());
    return gpuwire::kUsageError;
  }
  // The user of this command expects an answer now, so it does not retry.
  setenv(gpuwire::client::kConnectPatienceVariable, "0s", 1);
  options.measure = !quick;
  options.bulk_bytes = uint64_t(megabytes) << 20;
  return show_all(options);
}
