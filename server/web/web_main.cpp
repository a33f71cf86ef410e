// gpuwire-web serves the web page of a server. The broker starts it, passes it the listening socket and answers its
// requests; it holds no files, GPUs or rights. With web_certificate it is two processes, of which one speaks TLS.
#include <algorithm>
#include <chrono>
#include <ctime>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "command_line/command_line.hpp"
#include "protocol/transport/descriptor_passing.hpp"
#include "server/confinement/front_process.hpp"
#include "server/identity/identity_directory.hpp"
#include "server/identity/page_context.hpp"
#include "server/ipc/part_of_server.hpp"
#include "server/web/site.hpp"
#include "server/web/tls_front.hpp"
#include "server/web/web_server.hpp"

namespace gpuwire::server::web {
namespace {

int fail(const std::string& reason) { return fail_to_start("gpuwire-web", reason); }

// The broker passes these descriptors with the first byte on the pair.
struct Handed {
  OwnedDescriptor listening;
  OwnedDescriptor server;                   // of the process that speaks TLS; none: the page is not encrypted
  std::vector<OwnedDescriptor> page_files;  // certificate, key, and the authority of tenants' certificates
};

Handed receive_sockets() {
  char byte = 0;
  const iovec part{&byte, 1};
  transport::PassedDescriptors passed;
  const auto received = transport::receive_with_descriptors(ipc::kDescriptor, {&part, 1}, passed, true);
  Handed handed;
  if (received.bytes != 1) return handed;
  handed.listening.reset(passed.take(0));
  handed.server.reset(passed.take(1));
  for (size_t i = 2; i < passed.count(); ++i) handed.page_files.emplace_back(passed.take(i));
  return handed;
}

tl::expected<tls::Context, std::string> page_context(const std::vector<OwnedDescriptor>& files) {
  PageTexts texts;
  std::string* const all[] = {&texts.certificate, &texts.key, &texts.authority};
  for (size_t i = 0; i < std::min(files.size(), std::size(all)); ++i) {
    auto text = read_descriptor(files[i].get(), "a file of the page's certificate", kPemBytesMax);
    if (!text) return tl::unexpected(text.error());
    *all[i] = std::move(*text);
  }
  return make_page_context(texts, std::chrono::system_clock::now());
}

// Ends with the server and with the process that serves the page.
int run_front(Handed handed, OwnedDescriptor page) {
  auto context = page_context(handed.page_files);
  handed.page_files.clear();
  if (!context) return fail(context.error());
  allow_descriptors();
  if (auto confined = become_nobody(); !confined) return fail(confined.error());
  boost::asio::io_context io(1);
  TlsFront front(io, std::move(*context), {std::move(handed.listening), std::move(handed.server), std::move(page)},
                 [&io] { io.stop(); });
  if (auto confined = limit_system_calls(ProcessKind::web_tls); !confined) return fail(confined.error());
  io.run();
  return 0;
}

int run_page(OwnedDescriptor listening, OwnedDescriptor front) {
  if (auto confined = become_nobody(); !confined) return fail(confined.error());
  boost::asio::io_context io(1);
  ServerChannel server(io, OwnedDescriptor(ipc::kDescriptor), [&io] { io.stop(); });
  Site site(io, server);
  WebServer web(io, site);
  if (front) web.serve_arrivals(std::move(front), [&io] { io.stop(); });
  else web.serve(std::move(listening));
  if (auto confined = limit_system_calls(ProcessKind::web); !confined) return fail(confined.error());
  io.run();
  return 0;
}

int run() {
  ignore_signals();
  ::tzset();  // reads a file, so it comes before the confinement
  Handed handed = receive_sockets();
  if (!handed.listening) return fail("no socket to listen on");
  if (!handed.server) return run_page(std::move(handed.listening), {});
  // Two processes: the one that reads visitors' requests neither has the key nor says who has shown which certificate.
  tls::start_openssl();
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return fail("no pair of sockets");
  OwnedDescriptor page(ends[0]), front(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) return fail("no process for TLS");
  if (child == 0) {
    ::close(ipc::kDescriptor);
    front.reset();
    return run_front(std::move(handed), std::move(page));
  }
  handed = {};
  page.reset();
  return run_page({}, std::move(front));
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
