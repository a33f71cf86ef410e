// A worker without a driver: says and does what its first argument names.
#include <csignal>
#include <cstdlib>
#include <string>

#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/ipc/ipc_message.hpp"
#include "server/ipc/inventory.hpp"

using namespace gpuwire::server;

namespace {

void say(IpcMessageKind kind, std::string text) {
  IpcMessage message;
  message.kind = kind;
  message.number = 1;
  message.text = std::move(text);
  send_ipc_message(kIpcMessageDescriptor, message);
}

// As CUDA's: a list of numbers, all without it.
std::string visible_devices() {
  const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
  return text ? text : "all";
}

Inventory inventory(unsigned devices) {
  Inventory inventory{std::to_string(devices) + " x fake device, fake driver", {}};
  for (unsigned i = 0; i < devices; ++i)
    inventory.devices.push_back(
        {.index = i, .bytes = 1 << 30, .name = "fake device", .uuid = "GPU-" + std::to_string(i)});
  return inventory;
}

// Accepts, sends its process id and a line with the devices that it sees, and stays until the client closes.
void converse(int socket) {
  pid_t pid = ::getpid();
  ::send(socket, &pid, sizeof pid, MSG_NOSIGNAL);
  std::string devices = visible_devices() + "\n";
  ::send(socket, devices.data(), devices.size(), MSG_NOSIGNAL);
  char byte;
  while (::recv(socket, &byte, 1, 0) > 0) {}
}

}  // namespace

// MODE [DEVICES]
int main(int argc, char** argv) {
  std::string mode = argv[1];
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (mode == "dies") return 7;
  if (mode == "fails") {
    say(IpcMessageKind::failed, "the fake device is on holiday");
    return 1;
  }
  say(IpcMessageKind::ready, encode(inventory(argc > 2 ? unsigned(std::atoi(argv[2])) : 1)));
  IpcMessage session;
  if (receive_ipc_message(kIpcMessageDescriptor, true, session) != IpcMessageReceived::message || !session.socket)
    return 0;
  say(IpcMessageKind::begun, "fake client");
  if (mode == "crashes") std::abort();
  if (mode == "floods") {
    pid_t pid = ::getpid();
    ::send(session.socket.get(), &pid, sizeof pid, MSG_NOSIGNAL);
    for (;;) say(IpcMessageKind::note, "and another thing");
  }
  converse(session.socket.get());
  session.socket.reset();
  say(IpcMessageKind::ended, "the client left");
  if (mode == "lingers") {
    for (;;) ::pause();
  }
  return 0;
}
