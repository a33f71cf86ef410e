// A worker without a driver, small enough for a thousand of them: it serves a session while its client's connection is
// open, and continues under the next broker. It accepts a worker's arguments and ignores them.
//   GPUWIRE_TEST_DEVICES: how many devices it tells, where its broker names none
#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include <csignal>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "server/ipc/channel.hpp"

using namespace gpuwire::server;

namespace {

constexpr const char* kClient = "a simulated program";
constexpr uint64_t kDeviceBytes = uint64_t{64} << 30;

unsigned devices() {
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"))
    return unsigned(std::ranges::count(std::string_view(visible), ',')) + 1;
  const char* told = std::getenv("GPUWIRE_TEST_DEVICES");
  return told ? unsigned(std::strtoul(told, nullptr, 10)) : 1;
}

Inventory inventory() {
  const unsigned count = devices();
  Inventory inventory{std::to_string(count) + " x simulated device", {}};
  for (unsigned i = 0; i < count; ++i)
    inventory.devices.push_back(
        {.index = i, .bytes = kDeviceBytes, .name = "simulated device", .uuid = "GPU-" + std::to_string(i)});
  return inventory;
}

// Returns false if the session is over.
bool receive(ipc::Channel& broker) {
  std::optional<ipc::Message> message;
  for (;;) {
    switch (broker.try_receive(message)) {
      case ipc::Channel::Received::none_yet: return true;
      case ipc::Channel::Received::closed:
      case ipc::Channel::Received::nonsense: return false;
      case ipc::Channel::Received::message: break;
    }
    if (std::holds_alternative<ipc::Adopted>(*message)) broker.send(ipc::Begun{kClient});
    if (auto* stop = std::get_if<ipc::Stop>(&*message)) {
      broker.send(ipc::Ended{EndCause::stopped, stop->why});
      return false;
    }
  }
}

// Serves until the client closes, or the broker stops the session.
void stay(ipc::Channel& broker, int client) {
  for (;;) {
    pollfd watched[] = {{broker.descriptor(), broker.events(), 0}, {client, POLLIN, 0}};
    if (::poll(watched, 2, -1) < 0) continue;
    if (watched[0].revents & POLLOUT) broker.drain();
    if ((watched[0].revents & ~POLLOUT) && !receive(broker)) return;
    char said[4096];
    if (watched[1].revents && ::recv(client, said, sizeof said, 0) <= 0) {
      broker.send(ipc::Ended{EndCause::finished, "the client left"});
      return;
    }
  }
}

}  // namespace

int main() {
  ::prctl(PR_SET_NAME, "gpuwire-worker");
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  ipc::Channel broker(OwnedDescriptor(ipc::kDescriptor), ipc::Speaker::broker, 8);
  broker.send(ipc::Ready{inventory()});
  auto message = broker.await();
  auto* session = message ? std::get_if<ipc::Serve>(&*message) : nullptr;
  if (!session || !session->descriptors.client) return 0;
  ::prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0);
  broker.send(ipc::Begun{kClient});
  stay(broker, session->descriptors.client.get());
  broker.flush(std::chrono::minutes(1));
  return 0;
}
