// gpuwire-login: authenticates the clients of a server. The broker starts it and passes connections to it; it holds the
// server's key, and has no files, GPUs or rights.
#include <algorithm>
#include <ctime>
#include <span>
#include <string>

#include <boost/asio/io_context.hpp>
#include <unistd.h>

#include "command_line/command_line.hpp"
#include "protocol/tls/openssl.hpp"
#include "protocol/wire/ordinals.hpp"
#include "server/confinement/front_process.hpp"
#include "server/ipc/part_of_server.hpp"
#include "server/login/auth_server.hpp"
#include "server/login/login_frame.hpp"

namespace gpuwire::server {
namespace {

int fail(const std::string& reason) { return fail_to_start("gpuwire-login", reason); }

// Runs code that opens files at its first use: the C library reads the time zone for any calendar date, and Cap'n Proto
// loads a library for a stack trace when it cannot read a message.
void rehearse() {
  ::tzset();
  LoginFrameReader reader;
  wire::FrameHeader header{
      .kind = uint8_t(wire::FrameKind::control), .ordinal = uint32_t(wire::ControlOrdinal::login), .message_words = 1};
  const uint64_t bad_message = ~uint64_t(0);
  for (auto bytes : {std::as_bytes(std::span(&header, 1)), std::as_bytes(std::span(&bad_message, 1))}) {
    auto space = reader.space().first(bytes.size());
    std::copy(bytes.begin(), bytes.end(), space.begin());
    reader.filled(bytes.size());
  }
}

int run() {
  ignore_signals();
  tls::start_openssl();
  rehearse();
  ::close_range(ipc::kDescriptor + 1, ~0u, 0);
  allow_descriptors();
  if (auto confined = become_nobody(); !confined) return fail(confined.error());
  boost::asio::io_context io(1);
  AuthServer desk(
      io, OwnedDescriptor(ipc::kDescriptor), [] { return std::chrono::system_clock::now(); }, [&io] { io.stop(); });
  if (auto confined = limit_system_calls(ProcessKind::login); !confined) return fail(confined.error());
  io.run();
  return 0;
}

}  // namespace
}  // namespace gpuwire::server

#if defined(__SANITIZE_ADDRESS__)
// The leak detection at the end reads /proc, which is not accessible then.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() { return "detect_leaks=0"; }
#endif

int main(int argc, char** argv) {
  gpuwire::CommandLine app(gpuwire::server::part_of_server("Finds out who connects to a server."), "gpuwire login");
  if (auto code = gpuwire::parse_command_line(app, argc, argv)) return *code;
  if (auto code = gpuwire::server::started_by_hand("login")) return *code;
  return gpuwire::server::run();
}
