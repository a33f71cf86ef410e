// gpuwire-status: `gpuwire status`.
#include <cstdio>
#include <string>

#include <sys/ioctl.h>
#include <unistd.h>

#include "command_line/command_line.hpp"
#include "server/control/view/metrics_view.hpp"
#include "server/control/client/control_client.hpp"
#include "server/control/client/socket_path.hpp"

namespace {

constexpr const char* kDescription =
    "Shows the server that runs on this machine: its devices, what its tenants have used since it was\n"
    "started, its sessions, and the programs that wait for a GPU.\n";

constexpr const char* kFooter =
    "Root and the user that the server runs as see everything; a user of a tenant (unix_users in the\n"
    "configuration) sees that tenant.\n"
    "\n"
    "Environment:\n"
    "  GPUWIRE_CONTROL   the control socket, when --control is not given\n"
    "\n"
    "Exit status: 0; 1 with a line on stderr when no server answers or it refuses; 2 wrong usage.";

// 0: standard output is no terminal, or its width is unknown.
size_t terminal_columns() {
  winsize size{};
  return ::isatty(STDOUT_FILENO) && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace gpuwire::server;
  std::string control;
  bool json = false;
  gpuwire::CommandLine app(kDescription, "gpuwire status");
  app.footer(kFooter);
  app.add_option("--control", control, "The server's control socket; without it the only server that runs here")
      .type_name("PATH");
  app.add_flag("--json", json, "Print one JSON object with every figure instead of tables (docs/monitoring.md)");
  if (auto code = gpuwire::parse_command_line(app, argc, argv)) return *code;
  auto snapshot = find_control_socket(control)
                      .and_then([](const std::filesystem::path& path) { return ControlClient::connect(path); })
                      .and_then([](ControlClient client) { return client.snapshot(); });
  if (!snapshot) {
    std::fprintf(stderr, "gpuwire status: %s\n", snapshot.error().c_str());
    return 1;
  }
  if (json) {
    std::puts(to_json(*snapshot).dump(2, ' ', true, Json::error_handler_t::replace).c_str());
    return 0;
  }
  for (const std::string& line : status_lines(*snapshot, terminal_columns())) std::puts(line.c_str());
  return 0;
}
