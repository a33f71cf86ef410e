// gpuwire-web serves the web page of a server. The broker starts it, passes it the listening socket and answers its
// requests; it holds no files, GPUs or rights.
#include <ctime>
#include <string>

#include <boost/asio/io_context.hpp>
#include <sys/uio.h>

#include "command_line/command_line.hpp"
#include "protocol/transport/descriptor_passing.hpp"
#include "server/confinement/front_process.hpp"
#include "server/ipc/part_of_server.hpp"
#include "server/web/site.hpp"
#include "server/web/web_server.hpp"

namespace gpuwire::server::web {
namespace {

int fail(const std::string& reason) { return fail_to_start("gpuwire-web", reason); }

// Returns the listening socket, the first message on the pair.
OwnedDescriptor receive_listening_socket() {
  char byte = 0;
  const iovec part{&byte, 1};
  transport::PassedDescriptors passed;
  const auto received = transport::receive_with_descriptors(ipc::kDescriptor, {&part, 1}, passed, true);
  return received.bytes == 1 && passed.count() == 1 ? OwnedDescriptor(passed.take(0)) : OwnedDescriptor();
}

int run() {
  ignore_signals();
  ::tzset();  // reads a file, so it comes before the confinement
  OwnedDescriptor listening = receive_listening_socket();
  if (!listening) return fail("no socket to listen on");
  if (auto confined = become_nobody(); !confined) return fail(confined.error());
  boost::asio::io_context io(1);
  ServerChannel server(io, OwnedDescriptor(ipc::kDescriptor), [&io] { io.stop(); });
  Site site(io, server);
  WebServer web(io, std::move(listening), site);
  if (auto confined = limit_system_calls(ProcessKind::web); !confined) return fail(confined.error());
  io.run();
  return 0;
}

}  // namespace
}  // namespace gpuwire::server::web

#if defined(__SANITIZE_ADDRESS__)
// The leak checker reads /proc at the end, which the confinement forbids.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() { return "detect_leaks=0"; }
#endif

int main(int argc, char** argv) {
  gpuwire::CommandLine app(gpuwire::server::part_of_server("Serves the web page of a server."), "gpuwire web");
  if (auto code = gpuwire::parse_command_line(app, argc, argv)) return *code;
  if (auto code = gpuwire::server::started_by_hand("web")) return *code;
  return gpuwire::server::web::run();
}
