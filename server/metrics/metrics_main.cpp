// gpuwire-metrics: `gpuwire metrics`.
#include <cstdio>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "command_line/command_line.hpp"
#include "server/config/listen_address.hpp"
#include "server/control/client/socket_path.hpp"
#include "server/log/log.hpp"
#include "server/metrics/metrics_server.hpp"

namespace gpuwire::server {
namespace {

constexpr const char* kDescription =
    "Exports the figures of the server on this machine to Prometheus, at http://HOST:PORT/metrics.\n"
    "`gpuwire serve` starts it when its configuration has metrics_listen; start it yourself for a server\n"
    "whose configuration has none.\n";

constexpr const char* kFooter =
    "Whoever can reach the address sees the tenants' names and what they use; nothing is encrypted.\n"
    "\n"
    "Environment:\n"
    "  GPUWIRE_CONTROL   the control socket, when --control is not given\n"
    "\n"
    "Exit status: 0 ended by a signal; 1 with a line on stderr when the address is not available or no server runs\n"
    "here; 2 wrong usage.";

struct MetricsOptions {
  std::string listen = "127.0.0.1:9751";
  std::string control;
  std::string log_format = "text";
  bool with_parent = false;
};

int fail(int status, const std::string& reason) {
  std::fprintf(stderr, "gpuwire metrics: %s\n", reason.c_str());
  return status;
}

int serve(const MetricsOptions& options) {
  auto where = parse_listen_address(options.listen);
  if (!where) return fail(kUsageError, where.error());
  auto control = find_control_socket(options.control);
  if (!control) return fail(1, control.error());
  start_log("gpuwire-metrics", options.log_format == "json" ? LogFormat::json : LogFormat::text, "info");
  boost::asio::io_context io(1);
  MetricsServer server(io, *control);
  auto listening = server.listen(*where);
  if (!listening) return fail(1, listening.error());
  std::string address = listening->address().to_string();
  spdlog::info("metrics at http://{}{}{}:{}/metrics", listening->address().is_v6() ? "[" : "", address,
               listening->address().is_v6() ? "]" : "", listening->port());
  boost::asio::signal_set signals(io, SIGTERM, SIGINT);
  signals.async_wait([&](boost::system::error_code, int) { io.stop(); });
  io.run();
  return 0;
}

}  // namespace
}  // namespace gpuwire::server

int main(int argc, char** argv) {
  gpuwire::server::MetricsOptions options;
  gpuwire::CommandLine app(gpuwire::server::kDescription, "gpuwire metrics");
  app.footer(gpuwire::server::kFooter);
  app.add_option("--listen", options.listen, "The address that Prometheus reads; port 0 picks a free port")
      .type_name("HOST:PORT")
      .capture_default_str();
  app.add_option("--control", options.control, "The server's control socket; without it the only server that runs here")
      .type_name("PATH");
  app.add_option("--log-format", options.log_format).one_of({"text", "json"}).group("");
  app.add_flag("--with-parent", options.with_parent).group("");
  if (auto code = gpuwire::parse_command_line(app, argc, argv)) return *code;
  if (options.with_parent) ::prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
  try {
    return gpuwire::server::serve(options);
  } catch (const std::exception& error) {
    return gpuwire::server::fail(1, error.what());
  }
}
