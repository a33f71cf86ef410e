// A worker without a driver: says and does what its first argument names.
#include <csignal>
#include <cstdlib>
#include <string>

#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "protocol/wire/preface.hpp"
#include "server/broker/handoff.hpp"
#include "server/broker/inventory.hpp"

using namespace gpuwire;
using namespace gpuwire::server;

namespace {

void say(HandoffKind kind, std::string text) {
  Handoff handoff;
  handoff.kind = kind;
  handoff.number = 1;
  handoff.text = std::move(text);
  send_handoff(kHandoffDescriptor, handoff);
}

// Accepts, sends its process id, and stays until the client closes.
void converse(int socket) {
  wire::PrefaceBytes accepted = wire::encode(wire::own_preface());
  pid_t pid = ::getpid();
  ::send(socket, accepted.data(), accepted.size(), MSG_NOSIGNAL);
  ::send(socket, &pid, sizeof pid, MSG_NOSIGNAL);
  char byte;
  while (::recv(socket, &byte, 1, 0) > 0) {
  }
}

}  // namespace

int main(int, char** argv) {
  std::string mode = argv[1];
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (mode == "dies") return 7;
  if (mode == "fails") {
    say(HandoffKind::failed, "the fake device is on holiday");
    return 1;
  }
  say(HandoffKind::ready, encode(Inventory{"1 x fake device, fake driver", {{.bytes = 1 << 30, .name = "fake device", .uuid = "GPU-0"}}}));
  Handoff session;
  if (receive_handoff(kHandoffDescriptor, true, session) != HandoffReceived::message || !session.socket) return 0;
  say(HandoffKind::begun, "fake client");
  if (mode == "crashes") std::abort();
  converse(session.socket.get());
  session.socket.reset();
  say(HandoffKind::ended, "the client left");
  if (mode == "lingers") {
    for (;;) ::pause();
  }
  return 0;
}
