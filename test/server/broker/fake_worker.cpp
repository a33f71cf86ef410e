// A worker without a driver: its first argument names its behaviour.
#include <array>
#include <csignal>
#include <cstdlib>
#include <string>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/ipc/channel.hpp"

using namespace gpuwire::server;

namespace {

// Returns the variable's list of device numbers; all devices without it.
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

// Accepts, sends its process id and a line with the session's parameters, and stays until the client closes.
void converse(int socket, const std::string& given) {
  pid_t pid = ::getpid();
  ::send(socket, &pid, sizeof pid, MSG_NOSIGNAL);
  std::string line = given + "\n";
  ::send(socket, line.data(), line.size(), MSG_NOSIGNAL);
  char byte;
  while (::recv(socket, &byte, 1, 0) > 0) {}
}

}  // namespace

// Takes each further connection, sends a byte on it and closes it.
void take_connections(ipc::Channel& broker) {
  while (auto message = broker.await()) {
    if (std::holds_alternative<ipc::Stop>(*message)) return;
    auto* attach = std::get_if<ipc::Attach>(&*message);
    if (attach && attach->socket) ::send(attach->socket.get(), "a", 1, MSG_NOSIGNAL);
  }
}

// MODE [DEVICES [GATE]]
int main(int argc, char** argv) {
  std::string mode = argv[1];
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (mode == "dies") return 7;
  ipc::Channel broker(OwnedDescriptor(ipc::kDescriptor), ipc::Speaker::broker, 8);
  if (mode == "fails") {
    broker.send(ipc::Failed{"the fake device is on holiday"});
    return 1;
  }
  if (mode == "gated") {
    OwnedDescriptor gate(::open(argv[3], O_RDONLY | O_CLOEXEC));  // a FIFO: each byte in it lets one worker begin
    char byte;
    if (::read(gate.get(), &byte, 1) != 1) return 1;
  }
  unsigned devices = argc > 2 ? unsigned(std::atoi(argv[2])) : 1;
  if (mode == "shows") {
    OwnedDescriptor shown(::open(argv[2], O_RDONLY | O_CLOEXEC));  // a FIFO: each digit in it is one worker's devices
    char digit;
    if (::read(shown.get(), &digit, 1) != 1) return 1;
    devices = unsigned(digit - '0');
  }
  broker.send(ipc::Ready{inventory(devices)});
  auto message = broker.await();
  auto* session = message ? std::get_if<ipc::Serve>(&*message) : nullptr;
  if (!session || !session->descriptors.client) return 0;
  OwnedDescriptor client = std::move(session->descriptors.client);
  if (mode == "waits") {
    // Waits as long as the broker for a Hello that does not arrive.
    while (auto heard = broker.await()) {
      auto* stop = std::get_if<ipc::Stop>(&*heard);
      if (!stop) continue;
      broker.send(ipc::Ended{EndCause::stopped, stop->why});
      return 0;
    }
  }
  broker.send(ipc::Begun{"fake client"});
  if (mode == "crashes") std::abort();
  if (mode == "floods") {
    pid_t pid = ::getpid();
    ::send(client.get(), &pid, sizeof pid, MSG_NOSIGNAL);
    for (;;) {
      broker.send(ipc::Note{"and another thing"});
      broker.drain();
    }
  }
  if (mode == "refuses") {
    // As fast as the broker reads, and no faster: a compromised worker that keeps within its budget.
    for (int i = 0, count = std::atoi(argv[2]); i < count; ++i) {
      broker.send(ipc::Detached{1000, "the connection was lost"});
      broker.send(ipc::ResumeRefused{std::string(ipc::kTextBytesMax, 'x')});
      broker.send(ipc::Attached{});
      broker.flush(std::chrono::minutes(2));
    }
  }
  if (mode == "notes") {
    for (int i = 0, count = std::atoi(argv[2]); i < count; ++i) {
      broker.send(ipc::Begun{"fake client"});
      broker.send(ipc::Note{std::string(ipc::kTextBytesMax, 'x')});
      broker.flush(std::chrono::minutes(2));
    }
  }
  if (mode == "babbles") {
    pid_t pid = ::getpid();
    ::send(client.get(), &pid, sizeof pid, MSG_NOSIGNAL);
    ::send(ipc::kDescriptor, "and another thing", 16, MSG_NOSIGNAL);
    for (;;) ::pause();
  }
  if (mode == "hands") {
    // The client's connection, whose last close blocks on unread data.
    pid_t pid = ::getpid();
    ::send(client.get(), &pid, sizeof pid, MSG_NOSIGNAL);
    const linger long_time{1, 3600};
    ::setsockopt(client.get(), SOL_SOCKET, SO_LINGER, &long_time, sizeof long_time);
    std::array<char, 65536> data{};
    while (::send(client.get(), data.data(), data.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {}
    broker.send(ipc::Share{1, {}, 1, "user", std::move(client)});
    return 0;
  }
  if (mode == "listens" && session->spec.tenant == "ben") take_connections(broker);
  if (mode == "writes") {
    std::array<char, 256> log{};
    if (::readlink("/proc/self/fd/2", log.data(), log.size() - 1) < 0) return 1;
    std::signal(SIGPIPE, SIG_IGN);
    const std::string line = "a line of its own\n";
    for (int i = 0; i < 100'000; ++i)
      if (::write(STDERR_FILENO, line.data(), line.size()) < 0) break;
    converse(client.get(), log.data());
    return 0;
  }
  converse(client.get(), mode == "lanes" ? std::to_string(session->spec.lanes_max) : visible_devices());
  client.reset();
  broker.send(ipc::Ended{EndCause::finished, "the client left"});
  if (mode == "lingers") {
    for (;;) ::pause();
  }
  return 0;
}
