// gpuwire-web: the web page of a server. Started by the broker, which hands it the address where the page is and
// answers what it asks; it holds no files, GPUs or rights.
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

// The socket on which the page is, which comes first on the pair.
OwnedDescriptor receive_listening_socket() {
  char byte = 0;
  const iovec part{&byte, 1};
  transport::PassedDescriptors passed;
  const auto received = transport::receive_with_descriptors(ipc::kDescriptor, {&part, 1}, passed, true);
  return received.bytes == 1 && passed.count() == 1 ? OwnedDescriptor(passed.take(0)) : OwnedDescriptor();
}

int run() {
  ignore_signals();
  ::tzset();  // reads a file
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
// What looks for leaks at the end reads /proc, which is out of reach by then.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() { return "detect_leaks=0"; }
#endif

int main(int argc, char** argv) {
  gpuwire::CommandLine app(gpuwire::server::part_of_server("Serves the web page of a server."), "gpuwire web");
  if (auto code = gpuwire::parse_command_line(app, argc, argv)) return *code;
  if (auto code = gpuwire::server::started_by_hand("web")) return *code;
  return gpuwire::server::web::run();
}
